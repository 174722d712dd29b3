#!/bin/sh
# What the entry point of Spark's image does for `driver`: spark-submit from the arguments that Spark
# put into the pod. SPARK_HOME comes from the pod template.
set -eu
[ "${1:-}" = driver ] || { echo "usage: driver.sh driver ARGUMENTS" >&2; exit 2; }
shift
exec "$SPARK_HOME/bin/spark-submit" \
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
