#!/bin/sh
# Counts the words of one chunk after another.
#
#   executor.sh SHARED     SHARED: the folder that the driver and its executors share
#
# A chunk is a small file that is always in exactly one place: in todo/, in one executor's folder
# under claims/, or in done/. rename(2) moves it, so two executors never get the same one. The
# driver makes the claims/ folder of each executor, and takes it away when it hears that the
# executor is lost: from then on that executor can neither claim nor finish anything, dead or not.

. "${0%/*}/words.sh"
# As the first process of a container, a shell has to ask for the end that it is told to come to.
trap 'exit 143' TERM

id=$POSSE_EXECUTOR_ID
job=$1/posse-$POSSE_APP-$POSSE_INSTANCE
mine=$job/claims/$id

pause() {
    sleep 0.1 2>/dev/null || sleep 1
}

# Its first line says what to count, each further one who began it: executor and process.
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
        # Others go through the same list: most of it may be taken by now.
        [ -e "$path" ] && mv "$path" "$mine/$chunk" 2>/dev/null || continue
        work "$chunk" 2>/dev/null || break
    done
    pause
done
# The work is over, or this one is given up: the end is posse's to bring, and an exit would be a
# loss to be replaced.
while :; do
    sleep 1
done
