#!/bin/sh
# Puts tasks into a folder that all workers see, waits for their results, and prints the sum.
set -eu
umask 077
share=${SHARED_FOLDER:-/tmp}/posse-$POSSE_APP-$POSSE_INSTANCE
n_tasks=30

# Fails if the folder exists: another user could have prepared it.
mkdir "$share"
trap 'rm -rf "$share"' EXIT
trap 'exit 143' INT TERM
mkdir "$share/new" "$share/todo" "$share/doing" "$share/done"

# A task is a file. It is in todo/ only when it is complete.
i=1
while [ "$i" -le "$n_tasks" ]; do
    echo "$i" >"$share/new/$i"
    mv "$share/new/$i" "$share/todo/$i"
    i=$((i + 1))
done

while [ "$(ls "$share/done" | wc -l)" -lt "$n_tasks" ]; do
    # A task that takes over a minute was perhaps lost with its worker: another one does it again.
    find "$share/doing" -type f -mmin +1 | while read -r path; do
        task=${path##*/}
        mv "$path" "$share/todo/${task%.*}" || true
    done
    sleep 1
done
echo "sum of squares: $(cat "$share"/done/* | awk '{ sum += $1 } END { print sum }')"
