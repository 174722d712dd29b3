#!/bin/sh
# Tells Snakemake how a task is: `success`, `failed` or `running`. An unknown one is lost.
# posse may be away for a moment: that says nothing about the task.
tasks=$("$POSSE_EXE" task list --app "$POSSE_APP") || { echo running; exit; }
case $(echo "$tasks" | awk -v key="$1" '$1 == key { print $2 }') in
succeeded) echo success ;;
held | waiting | pending | running) echo running ;;
*) echo failed ;;
esac
