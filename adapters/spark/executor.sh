#!/bin/sh
# Does what the entry point of Spark's image does for `executor`: starts the backend from the environment
# that Spark put into the pod. SPARK_HOME comes from the pod template.
set -eu
[ "${1:-}" = executor ] || { echo "usage: executor.sh executor" >&2; exit 2; }

i=0
set --
while eval "option=\${SPARK_JAVA_OPT_$i:-}" && [ -n "$option" ]; do
    set -- "$@" "$option"
    i=$((i + 1))
done

# Spark copies the application's jars into the working directory.
work=${SPARK_LOCAL_DIRS%%,*}
mkdir -p "$work"
cd "$work"

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
