# The image that both managers' jobs run in: Python and the two smallest programs that sum over all ranks, and what only
# the MPI Operator needs, as its own base images have it: Open MPI, and an ssh server that any user can start, with the
# keys that the operator mounts. Nothing of Ronde's is inside; the manager's image brings it. The context is bench/.
ARG BASE=debian:12-slim
FROM ${BASE}
RUN apt-get update && \
    apt-get install --yes --no-install-recommends openmpi-bin openssh-client openssh-server python3 && \
    rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
RUN printf '%s\n' 'Host *' '  Port 2222' '  StrictHostKeyChecking no' '  UserKnownHostsFile /dev/null' \
    '  LogLevel ERROR' >/etc/ssh/ssh_config
RUN useradd --uid 1000 --create-home mpiuser && mkdir -p /run/sshd && \
    printf '%s\n' 'Port 2222' 'PidFile /home/mpiuser/sshd.pid' 'HostKey /home/mpiuser/.ssh/id_rsa' 'StrictModes no' \
    >/home/mpiuser/.sshd_config
COPY launch/first_mpi.py launch/first_ronde.py /bench/
