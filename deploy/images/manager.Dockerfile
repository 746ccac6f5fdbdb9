# The image of the Kubernetes manager: the programs `ronde` and `ronde-kube` and the Python package, all from the wheel.
# There is no Python inside: pods of jobs copy the package into a folder that the training's own Python finds, so that
# images to train in need nothing of Ronde. From the repository's root:
#
#   make wheel
#   DOCKER_BUILDKIT=1 docker build -f deploy/images/manager.Dockerfile -t ronde:manager .
#
# BASE unpacks the wheel and is not part of the image; RUNTIME is what the programs run on: a C library and libgcc.
ARG BASE=debian:12-slim
ARG RUNTIME=gcr.io/distroless/cc-debian12
FROM ${BASE} AS unpacked
RUN apt-get update && apt-get install --yes --no-install-recommends unzip
# A wheel is laid out by kind; what pip would make of it is what the program expects around itself.
RUN --mount=type=bind,source=dist,target=/dist \
    unzip -q "/dist/ronde-*_$(uname -m).whl" -d /wheel && \
    mkdir -p /local/bin /local/lib/python3/site-packages && \
    install /wheel/ronde-*.data/scripts/ronde /wheel/ronde-*.data/scripts/ronde-kube /local/bin && \
    cp -r /wheel/ronde /wheel/horovod /local/lib/python3/site-packages && \
    cp -r /wheel/ronde-*.data/platlib/. /local/lib/python3/site-packages

FROM ${RUNTIME}
COPY --from=unpacked /local /usr/local
# Nobody in particular: it needs no files of its own.
USER 65532:65532
HEALTHCHECK --interval=30s --timeout=10s CMD ["/usr/local/bin/ronde", "--version"]
ENTRYPOINT ["/usr/local/bin/ronde"]
