#!/bin/sh
# Says where the launcher has put this rank, then runs the probe that its argument names, which prints over which link
# it reaches every other rank.
echo "place $(hostname) $HOROVOD_HOSTNAME $HOROVOD_RANK $HOROVOD_SIZE" \
    "$HOROVOD_LOCAL_RANK $HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE"
exec "$1" allreduce --seconds 0.02 4096
