#!/bin/sh
# The first process of a node, or of the control plane's machine, started in namespaces of its own (namespaces.py):
#
#   init.sh NAME CORES
#
# Makes what such a machine must have to itself, says "ready" with the process number that the outside knows it by, and
# then waits for the end of its standard input. When it ends, the kernel ends every process and frees all the rest.
set -eu

# /proc is still the outside's here, so this is our number out there.
read -r outer rest </proc/self/stat

hostname "$1"
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
# Kubelet, container runtime and network plugins have fixed places here; what they write there stays in memory.
for path in /var/lib /var/log; do
    mkdir -p "/run/own$path/upper" "/run/own$path/work"
    mount -t overlay overlay -o "lowerdir=$path,upperdir=/run/own$path/upper,workdir=/run/own$path/work" "$path"
done
# The kubelet sets these for the whole machine if they are anything else. It is shown what it wants to see.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    shown="/run/own/$(echo "${setting%=*}" | tr / .)"
    echo "${setting#*=}" >"$shown"
    mount --bind "$shown" "/proc/sys/${setting%=*}"
done
# The kubelet counts the folders here; this machine's cores would not be enough for the pods of many GPUs.
mount -t tmpfs tmpfs /sys/devices/system/node
mount -t tmpfs tmpfs /sys/devices/system/cpu
(cd /sys/devices/system/cpu && seq --format cpu%.0f 0 "$(($2 - 1))" | xargs mkdir)
# Names of the world's registries are refused at once instead of after a while: there is no way to them anyway.
echo "nameserver 127.0.0.1" >/run/own/resolv.conf
[ ! -f /etc/resolv.conf ] || mount --bind /run/own/resolv.conf /etc/resolv.conf
# Volumes may pass mounts on to containers, which they cannot from a private mount. Nothing reaches the outside.
mount --make-rshared /

ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward

echo "ready $outer"
# Orphans become children of this process; ignored like this, the kernel buries them by itself.
exec env --ignore-signal=CHLD cat >/dev/null
