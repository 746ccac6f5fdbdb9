# The image that both managers' jobs run in: Python and the two smallest programs that sum over all ranks, and what only
# the MPI Operator needs, as its own base images have it: Open MPI, and an ssh server that any user can start, with the
# keys that the operator mounts. Ronde is inside as well, for jobs that say so; for others the manager's image, which it
# is copied from, brings it once more. The context is bench/.
ARG BASE=debian:12-slim
ARG MANAGER
FROM ${MANAGER} AS manager
FROM ${BASE}
RUN apt-get update && \
    apt-get install --yes --no-install-recommends openmpi-bin openssh-client openssh-server python3 && \
    rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
RUN printf '%s\n' 'Host *' '  Port 2222' '  StrictHostKeyChecking no' '  UserKnownHostsFile /dev/null' \
    '  LogLevel ERROR' >/etc/ssh/ssh_config
RUN useradd --uid 1000 --create-home mpiuser && mkdir -p /run/sshd && \
    printf '%s\n' 'Port 2222' 'PidFile /home/mpiuser/sshd.pid' 'HostKey /home/mpiuser/.ssh/id_rsa' 'StrictModes no' \
    >/home/mpiuser/.sshd_config
COPY --from=manager /usr/local/bin/ronde /usr/local/bin/
COPY --from=manager /usr/local/lib/python3/site-packages /usr/local/lib/python3.11/dist-packages
# As pip does.
RUN python3 -m compileall -q /usr/local/lib/python3.11/dist-packages
COPY launch/first_mpi.py launch/first_ronde.py /bench/
