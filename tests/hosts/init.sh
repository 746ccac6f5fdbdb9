#!/bin/sh
# The first process of a test host (see hosts.py), started in namespaces of its own:
#
#   init.sh NAME ETC_HOSTS [EXPOSED-PATH | own:FOLDER ...]
#
# Makes the host's root file system, says "ready" with the process number that the
# outside knows it by, and then waits for the end of its standard input. When it
# ends, the kernel ends every process of the host and frees all the rest.
set -eu
name=$1 etc_hosts=$2
shift 2

# /proc is still the outside's here, so this is our number out there.
read -r outer rest </proc/self/stat

# Everything is built under a memory file system that only this mount namespace sees.
stage=/mnt
mount -t tmpfs tmpfs "$stage"
mkdir "$stage/upper" "$stage/work" "$stage/root"
root=$stage/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$stage/upper,workdir=$stage/work" "$root"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
# Shared memory, temporary files and run-time files are what hosts must not share.
for own in dev/shm tmp run; do
    mount -t tmpfs tmpfs "$root/$own"
done
chmod 1777 "$root/dev/shm" "$root/tmp"
number=0
for path in "$@"; do
    case "$path" in
    own:*)
        # As the rest of the root: what the host changes is its own.
        path=${path#own:} number=$((number + 1))
        mkdir -p "$stage/upper.$number" "$stage/work.$number" "$root$path"
        mount -t overlay overlay -o "lowerdir=$path,upperdir=$stage/upper.$number,workdir=$stage/work.$number" "$root$path"
        continue
        ;;
    esac
    if [ -d "$path" ]; then
        mkdir -p "$root$path"
    else
        mkdir -p "$(dirname "$root$path")"
        [ -e "$root$path" ] || : >"$root$path"
    fi
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done

hostname "$name"
echo "$name" >"$root/etc/hostname"
printf '%s' "$etc_hosts" >"$root/etc/hosts"

# The new root on top of the old one, then the old one away: no folder is needed for it.
cd "$root"
pivot_root . .
umount -l .
cd /

echo "ready $outer"
# Waits for the end. Orphans of the host become its children; ignored like this, the kernel buries them by itself.
exec env --ignore-signal=CHLD cat >/dev/null
