#!/bin/sh
# A rank that will not go: it and all it starts ignore every request to end, and some of it hides where no process
# group, session or parent leads to it. Prints "up" when everything runs.
trap '' TERM INT HUP
# A child; signals ignored here are ignored there too.
sleep 1000 & # sleep: is there until it is killed, as are the others
# One in a session of its own whose parent is gone.
setsid -f sleep 1001 # sleep: likewise
# The same once more removed, with children of its own.
setsid -f sh -c 'setsid -f sleep 1002; sleep 1003; sleep 1004' # sleep: likewise
echo up
while :; do sleep 1005; done # sleep: likewise
