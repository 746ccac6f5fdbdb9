# An image to train in on NVIDIA GPUs: a framework with CUDA, Ronde, an ssh server and the examples. From the
# repository's root:
#
#   make wheel
#   DOCKER_BUILDKIT=1 docker build -f deploy/images/gpu.Dockerfile -t ronde:gpu .
#   docker run --gpus all -it ronde:gpu
#
# docs/containers.md says how it is used. No key is inside, and nothing the build needs to reach packages stays in it.
# Below the base this file is cpu.Dockerfile with another device; a test compares them.
ARG BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04
FROM ${BASE}

RUN --mount=type=bind,source=deploy/images/build,target=/build /build/system

# Which framework: torch, tensorflow or none (none keeps what the base brings); its version, the newest if empty; and
# the index that pip takes it from, empty where the usual one is right.
ARG FRAMEWORK=torch
ARG FRAMEWORK_VERSION=
ARG FRAMEWORK_INDEX=
RUN --mount=type=bind,source=deploy/images/build,target=/build --mount=type=secret,id=pip --mount=type=secret,id=ca \
    PATH="/build:$PATH" framework gpu "$FRAMEWORK" "$FRAMEWORK_VERSION" "$FRAMEWORK_INDEX"

# `yes` adds JupyterLab, for the mode `jupyter`, and what its cells travel to ranks with.
ARG JUPYTER=no
RUN --mount=type=bind,source=deploy/images/build,target=/build --mount=type=secret,id=pip --mount=type=secret,id=ca \
    [ "$JUPYTER" != yes ] || /build/pip-install jupyterlab cloudpickle

RUN --mount=type=bind,source=deploy/images/build,target=/build --mount=type=bind,source=dist,target=/dist \
    /build/pip-install --no-index --no-deps --find-links /dist ronde && ronde run --check-build

COPY deploy/images/files/entrypoint deploy/images/files/healthcheck deploy/images/files/sshd.conf /usr/lib/ronde/
COPY deploy/images/files/sshd /usr/sbin/sshd
COPY deploy/images/files/sshd.conf /etc/ssh/sshd_config.d/ronde.conf
COPY deploy/images/files/ssh.conf /etc/ssh/ssh_config.d/ronde.conf
COPY examples/*.py examples/*.ipynb /examples/
# People change examples, and programs write beside them, whoever they run as.
RUN chmod 1777 /examples

# Who containers run as, unless `docker run --user` says otherwise: root, or 1000, the user `ronde`.
ARG USER=root
USER ${USER}
WORKDIR /examples
HEALTHCHECK --interval=30s --timeout=10s --start-period=5s CMD ["/usr/lib/ronde/healthcheck"]
# The first process of a container has to end when it is told to and to take care of orphans; tini does both.
ENTRYPOINT ["tini", "-s", "--", "/usr/lib/ronde/entrypoint"]
