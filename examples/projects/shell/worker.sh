#!/bin/sh
# Takes one task after another from the driver's folder. rename(2) moves a task, so no two workers get
# the same one.
set -u
umask 077
share=${SHARED_FOLDER:-/tmp}/posse-$POSSE_APP-$POSSE_INSTANCE
# The first process of a container ends at a TERM only if it handles the signal.
trap 'exit 143' TERM

while :; do
    for path in "$share"/todo/*; do
        task=${path##*/}
        mine=$share/doing/$task.$POSSE_EXECUTOR_ID
        mv "$path" "$mine" 2>/dev/null || continue
        touch "$mine"
        # Put your own work here.
        n=$(cat "$mine")
        echo $((n * n)) >"$share/new/$task.$POSSE_EXECUTOR_ID"
        mv "$share/new/$task.$POSSE_EXECUTOR_ID" "$share/done/$task"
        rm -f "$mine"
    done 2>/dev/null
    sleep 0.2 2>/dev/null || sleep 1
done
