#!/bin/sh
# The preStop hook that Spark gives an executor's pod with spark.decommission.enabled (/opt/decom.sh in the image): tells the
# executor that it will end, and keeps SIGTERM away until it has moved its blocks or the pod's grace period is over. Spark's own
# hook waits for at most 60 s and signals at once.
set -eu
# In a drain the driver has told the executor already, or waits for a successor: an executor that finds no other one to move its
# blocks to gives up. The signal is for a node that is shut down, of which nobody tells the driver.
SECONDS_TO_DRIVER=5
sleep "$SECONDS_TO_DRIVER"
# The executor is the container's first process, so this script ends with it.
kill -s PWR 1
while :; do sleep 1; done
