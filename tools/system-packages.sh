#!/bin/sh
# Names the system programs that opsctl needs here and are missing; as root on Debian or Ubuntu, installs them.
missing=
need() { # need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
need tmux command -v tmux
need g++ sh -c 'command -v g++ || command -v clang++'
need python3-venv "${PYTHON:-python3}" -c 'import ensurepip, venv'
need python3-dev "${PYTHON:-python3}" -c 'import pathlib, sysconfig as s; assert (pathlib.Path(s.get_path("include")) / "Python.h").exists()'
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing missing system packages:$missing"
    # shellcheck disable=SC2086  # one word a package
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
    exit
fi
echo "missing system packages:$missing" >&2
echo "install them first, on Debian or Ubuntu: sudo apt-get install$missing" >&2
exit 1
