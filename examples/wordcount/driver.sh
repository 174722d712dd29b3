#!/bin/sh
# Counts the words of all texts with executors, and checks the result.
#
#   driver.sh SHARED TEXTS     SHARED: the folder that the driver and its executors share
#                              TEXTS: the folder with the texts, *.txt
#
# executor.sh explains how executors take work. The driver follows posse's events and puts the chunks
# of lost executors back.

. "${0%/*}/words.sh"

: "${POSSE_EXE:?is not set: start this with posse run}" "${2:?usage: driver.sh SHARED TEXTS}"
lines=${WORDCOUNT_CHUNK_LINES:-6}
job=$1/posse-$POSSE_APP-$POSSE_INSTANCE
texts=$2

fail() {
    echo "wordcount: $*" >&2
    exit 1
}

pause() {
    sleep 0.1 2>/dev/null || sleep 1
}

n_files() {
    set -- "$1"/*
    [ -e "$1" ] && echo $# || echo 0
}

# Cuts each text into chunks of $lines lines.
cut_into_chunks() {
    for path in "$texts"/*.txt; do
        text=${path##*/}
        cat "$path" >"$job/texts/$text" || return
        n_lines=$(wc -l <"$path")
        from=1
        while [ $from -le $((n_lines)) ]; do
            to=$((from + lines - 1))
            echo "$text $from $to" >"$job/todo/$text.$from" || return
            from=$((to + 1))
        done
    done
}

# Makes a claims/ folder for each new executor. Takes a lost executor's folder away and puts its chunks back.
follow_events() {
    {
        "$POSSE_EXE" events --follow -o json &
        echo $! >"$job/follower"
        wait
    } | while IFS= read -r event; do
        id=${event#*\"executor\":}
        id=${id%%[!0-9]*}
        case $event in
        *'"event":"executor_requested"'*)
            mkdir "$job/claims/$id"
            ;;
        *'"event":"executor_lost"'* | *'"event":"executor_deleted"'*)
            mv "$job/claims/$id" "$job/lost/$id" 2>/dev/null || continue
            for path in "$job/lost/$id"/*; do
                [ -e "$path" ] && mv "$path" "$job/todo/${path##*/}"
            done
            ;;
        *'"event":"missed"'*)
            # A loss may be among the missed events, so the count could wait for ever.
            break
            ;;
        esac
    done
}

# Adds up the counts of each word. Input: "count word" lines, sorted by word.
add_up() {
    last="" sum=0
    while read -r n word; do
        if [ "$word" != "$last" ]; then
            [ -z "$last" ] || echo "$sum $last"
            last=$word sum=0
        fi
        sum=$((sum + n))
    done
    [ -z "$last" ] || echo "$sum $last"
}

clean_up() {
    # The reader of events ends when its source ends.
    [ ! -s "$job/follower" ] || kill "$(cat "$job/follower")" 2>/dev/null
    # An executor may create a file while rm runs, so rm runs twice.
    rm -rf "$job" 2>/dev/null || rm -rf "$job"
}

umask 077
# Fails if the folder exists: another user could have prepared it.
mkdir "$job" || fail "cannot make the folder $job"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$job/texts" "$job/todo" "$job/claims" "$job/lost" "$job/partial" "$job/counts" "$job/done" ||
    fail "cannot make folders in $job"
cut_into_chunks || fail "cannot cut the texts in $texts into chunks"
n_chunks=$(n_files "$job/todo")
[ "$n_chunks" -gt 0 ] || fail "there is nothing to count in $texts"

follow_events &
reader=$!
while [ "$(n_files "$job/done")" -lt "$n_chunks" ]; do
    kill -0 $reader 2>/dev/null || fail "posse's events ended before the work did"
    pause
done

cat "$job"/counts/* | sort -k 2 | add_up >"$job/result"
cat "$texts"/*.txt | count >"$job/expected"
same=no
[ "$(cat "$job/result")" = "$(cat "$job/expected")" ] && same=yes

# The first line of each chunk is the work. Each further line is one executor that began it.
n_again=$(($(cat "$job"/done/* | wc -l) - 2 * n_chunks))
echo "the ten most frequent of $(($(wc -l <"$job/result"))) words:"
sort -k 1,1nr -k 2 "$job/result" | sed '10q'
echo "$n_chunks chunks, begun again after a loss: $n_again"
echo "same as one sort | uniq -c: $same"
[ $same = yes ]
