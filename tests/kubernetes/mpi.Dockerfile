# The training image with Debian's Open MPI, for tests of jobs over ssh: what users bring who start theirs with mpirun.
ARG BASE
FROM ${BASE}
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends openmpi-bin && rm -rf /var/lib/apt/lists/*
