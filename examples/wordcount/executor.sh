#!/bin/sh
# Counts the words of one chunk after another.
#
#   executor.sh SHARED     SHARED: the folder that the driver and its executors share
#
# A chunk is a small file that is always in exactly one place: in todo/, in one executor's folder
# under claims/, or in done/. rename(2) moves it, so two executors never get the same chunk. The
# driver makes each executor's folder under claims/, and takes the folder away when the executor is
# lost. From then on this executor can neither claim nor finish a chunk, even if it still runs.

. "${0%/*}/words.sh"
# The first process of a container ends at a TERM only if it handles the signal.
trap 'exit 143' TERM

id=$POSSE_EXECUTOR_ID
job=$1/posse-$POSSE_APP-$POSSE_INSTANCE
mine=$job/claims/$id

pause() {
    sleep 0.1 2>/dev/null || sleep 1
}

# The first line of a chunk says what to count. Each further line names an executor that began it.
work() {
    chunk=$1
    read -r text from to <"$mine/$chunk" || return
    echo "$id $$" >>"$mine/$chunk" || return
    sed -n "$from,${to}p" "$job/texts/$text" | count >"$job/partial/$chunk.$id" || return
    mv "$job/partial/$chunk.$id" "$job/counts/$chunk" || return
    mv "$mine/$chunk" "$job/done/$chunk"
}

until [ -d "$mine" ]; do
    pause
done
while [ -d "$mine" ]; do
    for path in "$job"/todo/*; do
        chunk=${path##*/}
        # Other executors read the same list and may have taken the chunk already.
        [ -e "$path" ] && mv "$path" "$mine/$chunk" 2>/dev/null || continue
        work "$chunk" 2>/dev/null || break
    done
    pause
done
# The work is done, or this executor counts as lost. It waits until posse ends it: posse would
# replace an executor that exits by itself.
while :; do
    sleep 1
done
