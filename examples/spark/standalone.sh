#!/bin/sh
# The driver of standalone.yaml: starts a Spark master and an application on it.
set -eu
export SPARK_LOCAL_IP=127.0.0.1 # also of the web page
export SPARK_DAEMON_JAVA_OPTS="$JAVA_QUICK"
spark-class org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 17077 --webui-port 0 \
    --properties-file "$SECRET_FILE" &
master=$!
trap 'kill "$master"' EXIT
spark-submit --master spark://127.0.0.1:17077 --properties-file "$SECRET_FILE" \
    --conf spark.driver.host=127.0.0.1 --conf spark.ui.enabled=false \
    --conf "spark.executor.extraJavaOptions=$JAVA_QUICK" --driver-java-options "$JAVA_QUICK" \
    --conf spark.executor.memory=512m --conf spark.cores.max=2 \
    --conf "spark.pyspark.python=$(command -v python3)" \
    "$@"
