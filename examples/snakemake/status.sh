#!/bin/sh
# Tells Snakemake how a task is: `success`, `failed` or `running`. An unknown one is lost.
case $("$POSSE_EXE" task list --app "$POSSE_APP" | awk -v key="$1" '$1 == key { print $2 }') in
succeeded) echo success ;;
held | waiting | pending | running) echo running ;;
*) echo failed ;;
esac
