#!/bin/sh
# Takes one task after another from the driver's folder. rename(2) moves a task, so no two workers get
# the same one.
set -u
umask 077
share=${SHARED_FOLDER:-/tmp}/posse-$POSSE_APP-$POSSE_INSTANCE
# The driver makes this worker's folder, and takes it away if the worker is lost.
mine=$share/doing/$POSSE_EXECUTOR_ID
# The first process of a container ends at a TERM only if it handles the signal.
trap 'exit 143' TERM

while :; do
    for path in "$share"/todo/*; do
        task=${path##*/}
        mv "$path" "$mine/$task" 2>/dev/null || continue
        name=$task.$POSSE_EXECUTOR_ID
        # Put your own work here.
        n=$(cat "$mine/$task") || continue
        echo $((n * n)) >"$share/results/$name"
        # The result counts from here on, and not if this worker is lost.
        mv "$mine/$task" "$share/done/$name"
    done 2>/dev/null
    sleep 0.2 2>/dev/null || sleep 1
done
