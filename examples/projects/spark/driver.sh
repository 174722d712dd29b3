#!/bin/sh
# Starts a Spark master, and the application on it: driver.sh HOST PORT
set -eu
PATH=$PATH:/opt/spark/bin
command -v spark-class >/dev/null || { echo "driver.sh: there is no Spark: pip install pyspark" >&2; exit 1; }
command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null || { echo "driver.sh: there is no Java: install Java 17" >&2; exit 1; }
# Workers and their executors dial this address, where the master's web page is, too.
export SPARK_LOCAL_IP="$1"
case $1 in *:*) host=[$1] ;; *) host=$1 ;; esac
port=$2
spark-class org.apache.spark.deploy.master.Master --host "$host" --port "$port" --webui-port 0 --properties-file "$SECRET_FILE" &
master=$!
trap 'kill "$master"' EXIT
# spark-submit waits for the master.
spark-submit --master "spark://$host:$port" --properties-file "$SECRET_FILE" --conf spark.driver.host="$host" \
    --conf spark.driver.bindAddress="$host" --conf spark.ui.enabled=false --conf spark.executor.memory=512m app.py
