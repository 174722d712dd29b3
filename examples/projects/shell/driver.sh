#!/bin/sh
# Puts tasks into a folder that all workers see, waits for their results, and prints the sum.
set -eu
umask 077
share=${SHARED_FOLDER:-/tmp}/posse-$POSSE_APP-$POSSE_INSTANCE
n_tasks=30

# Gives each worker a folder for its task. A lost worker's folder is taken away: only then another worker begins
# its task again, and the lost one can end it no more.
follow_workers() {
    "$POSSE_EXE" events --follow --json | while IFS= read -r event; do
        id=${event#*\"executor\":}
        id=${id%%[!0-9]*}
        case $event in
        *'"event":"executor_requested"'*) mkdir "$share/doing/$id" ;;
        *'"event":"executor_lost"'* | *'"event":"executor_deleted"'*)
            mv "$share/doing/$id" "$share/lost/$id" 2>/dev/null || continue
            for path in "$share/lost/$id"/*; do
                [ ! -e "$path" ] || mv "$path" "$share/todo/${path##*/}"
            done
            ;;
        # A loss may be among those that posse has dropped.
        *'"event":"missed"'*) break ;;
        esac
    done
}

# Fails if the folder exists: another user could have prepared it.
mkdir "$share"
trap 'rm -rf "$share"' EXIT
trap 'exit 143' INT TERM
mkdir "$share/new" "$share/todo" "$share/doing" "$share/lost" "$share/results" "$share/done"

# A task is a file. It is in todo/ only when it is complete.
i=1
while [ "$i" -le "$n_tasks" ]; do
    echo "$i" >"$share/new/$i"
    mv "$share/new/$i" "$share/todo/$i"
    i=$((i + 1))
done

follow_workers &
while [ "$(ls "$share/done" | wc -l)" -lt "$n_tasks" ]; do
    kill -0 $! 2>/dev/null || { echo "posse's events have ended, so nobody knows which workers are lost" >&2 && exit 1; }
    sleep 1
done
cd "$share/done"
echo "sum of squares: $(for name in *; do cat "$share/results/$name"; done | awk '{ sum += $1 } END { print sum }')"
