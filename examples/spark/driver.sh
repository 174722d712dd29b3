#!/bin/sh
# Does what the entry point of Spark's image does for `driver`: calls spark-submit with the pod's
# arguments. SPARK_HOME comes from the pod template.
set -eu
[ "${1:-}" = driver ] || { echo "usage: driver.sh driver ARGUMENTS" >&2; exit 2; }
shift
# The embedded cluster has no names for services, by which executors find the driver before Spark 4.1.
exec "$SPARK_HOME/bin/spark-submit" \
    --conf "spark.driver.host=$SPARK_DRIVER_BIND_ADDRESS" \
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
