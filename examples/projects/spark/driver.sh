#!/bin/sh
# Starts a Spark master, and the application on it: driver.sh PORT
set -eu
PATH=$PATH:/opt/spark/bin
# Workers and their executors dial this address.
host=${POD_IP:-127.0.0.1}
spark-class org.apache.spark.deploy.master.Master --host "$host" --port "$1" --webui-port 0 &
master=$!
trap 'kill "$master"' EXIT
# spark-submit waits for the master.
spark-submit --master "spark://$host:$1" --conf spark.driver.host="$host" --conf spark.driver.bindAddress="$host" \
    --conf spark.ui.enabled=false --conf spark.executor.memory=512m app.py
