# The image of the Kubernetes manager: the `ronde` program and nothing else. From the repository's root:
#
#   make wheel
#   DOCKER_BUILDKIT=1 docker build -f deploy/images/manager.Dockerfile -t ronde:manager .
#
# BASE unpacks the wheel and is not part of the image; RUNTIME is what the program runs on: a C library and libgcc.
ARG BASE=debian:12-slim
ARG RUNTIME=gcr.io/distroless/cc-debian12
FROM ${BASE} AS unpacked
RUN apt-get update && apt-get install --yes --no-install-recommends unzip
RUN --mount=type=bind,source=dist,target=/dist \
    unzip -q "/dist/ronde-*_$(uname -m).whl" 'ronde-*.data/scripts/ronde' -d /wheel && \
    install /wheel/ronde-*.data/scripts/ronde /ronde

FROM ${RUNTIME}
COPY --from=unpacked /ronde /usr/local/bin/ronde
# Nobody in particular: it needs no files of its own.
USER 65532:65532
HEALTHCHECK --interval=30s --timeout=10s CMD ["/usr/local/bin/ronde", "--version"]
ENTRYPOINT ["/usr/local/bin/ronde"]
