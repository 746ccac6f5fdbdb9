#!/bin/sh
# The first process of the machine that the test cloud is, started in namespaces of its own (machine.py, prepare):
#
#   init.sh LAYERS memory|FOLDER [COMMAND...]
#
# Its root are LAYERS, folders that stay as they are, and what is written goes into memory, or into FOLDER/upper. Runs the
# command; without one it says "ready" with the process number that the outside knows it by and waits for the end of its
# standard input. When it ends, the kernel ends every process and frees all the rest.
set -eu
layers=$1 place=$2
shift 2

# /proc is still the outside's here, so this is our number out there.
read -r outer rest </proc/self/stat

mount -t tmpfs tmpfs /mnt
[ "$place" != memory ] || place=/mnt
mkdir -p "$place/upper" "$place/work" /mnt/root
root=/mnt/root
mount -t overlay overlay -o "lowerdir=$layers,upperdir=$place/upper,workdir=$place/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
for own in dev/shm tmp run; do
    mount -t tmpfs tmpfs "$root/$own"
done
chmod 1777 "$root/dev/shm" "$root/tmp"
# What runs inside is ours too, and not part of the layers.
mkdir -p "$root/srv/cloud"
mount --bind "$(dirname "$0")/inside" "$root/srv/cloud"
hostname cloud
printf '127.0.0.1 localhost cloud\n' >"$root/etc/hosts"

# The new root on top of the old one, then the old one away: no folder is needed for it.
cd "$root"
pivot_root . .
umount -l .
cd /
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up

[ $# -eq 0 ] || { "$@" && exit || exit $?; }
echo "ready $outer"
# Orphans become children of this process; ignored like this, the kernel buries them by itself.
exec env --ignore-signal=CHLD cat >/dev/null
