#!/usr/bin/env bash
# What the tests of SSH and containers need on a Debian machine, as root: programs, a Docker engine that answers, and one
# base system that Docker (as an image) and LXC (as a root folder) share. Idempotent; every step is bounded. An engine is
# started only where none answers, and is left running for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=tests/support/base.packages
key=$(sha256sum <"$packages" | cut -c1-12)
image=opsctl-tests-base:$key
state=/var/tmp/opsctl-tests
root=$state/root-$key

install_programs() {
    local missing=()
    for pair in dockerd:docker.io iptables:iptables lxc-start:lxc mmdebstrap:mmdebstrap sshd:openssh-server; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "installing ${missing[*]}"
    timeout 300 apt-get update -qq
    DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start_engine() {
    engine_answers && return
    echo "starting dockerd, log in $state/dockerd.log"
    # 9 is the lock: an engine that outlives us must not hold it
    PATH=$PATH:/usr/sbin:/sbin setsid dockerd >"$state/dockerd.log" 2>&1 </dev/null 9>&- &
    for _ in $(seq 60); do
        engine_answers && return
        sleep 1
    done
    tail -n 20 "$state/dockerd.log" >&2
    echo "no Docker engine answers after 60 s" >&2
    return 1
}

make_base() {
    local has_image=yes
    docker image inspect "$image" >/dev/null 2>&1 || has_image=
    [ "$has_image" ] && [ -d "$root" ] && return
    echo "building the base system of $packages"
    local tar=$state/base-$key.tar
    timeout 600 mmdebstrap --quiet --variant=minbase --include="$(paste -sd, "$packages")" bookworm "$tar"
    [ "$has_image" ] || timeout 300 docker import --change 'CMD ["sleep", "infinity"]' "$tar" "$image" >/dev/null
    if [ ! -d "$root" ]; then
        rm -rf "$root.part"
        mkdir -m 755 "$root.part"
        tar -C "$root.part" --numeric-owner --exclude=./dev/* -xf "$tar"
        mv "$root.part" "$root"
    fi
    rm "$tar"
}

mkdir -p "$state"
exec 9>"$state/lock"
flock -w 900 9
install_programs
start_engine
make_base
echo "ready: $(docker version --format 'Docker {{.Server.Version}}'), LXC $(lxc-start --version), base $key"
