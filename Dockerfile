# The image that a GPU container runs: system, uv, a pinned set, the trainer. Classic syntax: no BuildKit is needed.
# `opsctl container build` builds it; by hand: docker build --build-arg ENV_NAME=cu130 -t opsctl-gpu .
#
# BASE       image to build on: Debian or Ubuntu
# ENV_NAME   the pinned set: env/ENV_NAME.lock
# UID        of the user `opsctl`, as whom all runs
# CA_BUNDLE  file of certificates in the build's folder, for a proxy or a mirror; none by default
# WHEELS     folder of wheels in the build's folder, for what no index has; none by default
ARG BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04

FROM ${BASE} AS system
# what the base has is not fetched again
RUN set -eu; missing=; \
    for package in ca-certificates g++ procps python3 python3-dev python3-venv tmux; do \
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok' || missing="$missing $package"; \
    done; \
    if [ -n "$missing" ]; then \
        apt-get update; \
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; \
        rm -rf /var/lib/apt/lists/*; \
    fi
# a volume that is mounted on an empty folder takes its owner and mode from here
ARG UID=1000
RUN set -eu; \
    if old=$(id -nu "$UID" 2>/dev/null); then userdel --remove "$old" 2>/dev/null; fi; \
    useradd --create-home --uid "$UID" --shell /bin/bash opsctl; \
    install -d -o opsctl -g opsctl -m 700 /home/opsctl/.opsctl /home/opsctl/.cache

FROM system AS env
ARG UV_VERSION=0.13.9
ARG CA_BUNDLE=none.crt
ARG WHEELS=none
ARG ENV_NAME=cu130
# a pattern may match nothing, as long as one source does
COPY env/${ENV_NAME}.lock ${CA_BUNDLE}* /build/
COPY env/${ENV_NAME}.lock ${WHEELS}/*.whl /build/wheels/
# The lock says which Python it is for and, where no wheel of torch was given, which of PyTorch's indices has it.
RUN set -eu; cd /build; lock=${ENV_NAME}.lock; bundle=/build/$(basename "$CA_BUNDLE"); \
    option() { sed -n "s/^# opsctl: $1 = //p" "$lock"; }; \
    if [ -f "$bundle" ]; then export SSL_CERT_FILE="$bundle" PIP_CERT="$bundle"; fi; \
    mkdir -p /opt/bin /opt/python; \
    python3 -m venv /build/uv; \
    /build/uv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --find-links wheels "uv==$UV_VERSION"; \
    cp /build/uv/bin/uv /opt/bin/uv; \
    export UV_NO_PROGRESS=1 UV_NO_CACHE=1 UV_PYTHON_INSTALL_DIR=/opt/python UV_PYTHON_BIN_DIR=/opt/bin; \
    python=python$(option python); \
    command -v "$python" || /opt/bin/uv python install "${python#python}"; \
    PATH=/opt/bin:$PATH /opt/bin/uv venv --no-project --python "$python" /opt/env; \
    backend=$(option torch-backend); \
    ls wheels/torch-*.whl 2>/dev/null && backend=; \
    /opt/bin/uv pip sync --python /opt/env/bin/python --require-hashes --only-binary :all: --compile-bytecode \
        --link-mode copy --find-links wheels ${backend:+--torch-backend "$backend"} "$lock"; \
    echo /opt/trainer >"$(echo /opt/env/lib/python*/site-packages)/trainer.pth"; \
    rm -rf /build

FROM system
COPY --from=env /opt/bin/ /usr/local/bin/
COPY --from=env /opt/python/ /opt/python/
COPY --from=env /opt/env/ /opt/env/
ENV PATH=/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER opsctl
WORKDIR /home/opsctl
# tmux needs terminals; a container that was given GPUs can lose them while it runs
HEALTHCHECK --interval=60s --timeout=20s --start-period=10s --retries=3 CMD \
    python3 -c 'import os; [os.close(one) for one in os.openpty()]' \
    && tmux -V >/dev/null && { [ ! -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null; }
CMD ["sleep", "infinity"]
# last, since it changes most
COPY configs/ /opt/trainer/configs/
COPY trainer/ /opt/trainer/trainer/
