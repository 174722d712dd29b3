#!/bin/sh
# The driver's command: spark-submit against the cluster of $KUBECONFIG, by the adapter's posse-spark-submit.
# Needs SPARK_HOME, POSSE_SPARK_JAR, POSSE_CONTROL, EXECUTOR_TEMPLATE and JAVA_QUICK; arguments go to
# spark-submit. With --cluster as the first argument the driver is a pod, whose entry point is $POSSE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${SPARK_EXAMPLE_WORK:?a folder of its own}

program=$here/../../adapters/spark/posse-spark-submit
if [ "${1:-}" = --cluster ]; then
    shift
    # Spark's own cluster mode: posse-spark-submit would make a Job.
    program=$SPARK_HOME/bin/spark-submit
    server=$(sed -n 's/.*server: *"\{0,1\}\([^",}]*\).*/\1/p' "$KUBECONFIG" | head -n 1)
    cat > "$work/driver.yaml" <<YAML
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: spark-kubernetes-driver
      command: ["$POSSE", run, -f, "$here/posse.yaml", --, sh, "$here/driver.sh"]
      env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: SPARK_HOME, value: "$SPARK_HOME"}
YAML
    # The embedded cluster has no names for its services, no network policies, and no watch by web socket. By HTTP
    # Spark's client passes the bookmarks of each minute to spark-submit, which cannot read them: it does not wait.
    set -- --deploy-mode cluster --conf spark.kubernetes.driver.master="$server" \
        --conf spark.kubernetes.driver.podTemplateFile="$work/driver.yaml" \
        --conf spark.kubernetes.driver.podTemplateContainerName=spark-kubernetes-driver \
        --conf spark.kubernetes.driver.pod.excludedFeatureSteps=org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep \
        --conf spark.kubernetes.submission.waitAppCompletion=false \
        --conf spark.kubernetes.driver.request.cores=100m \
        --conf "spark.driver.extraClassPath=$POSSE_SPARK_JAR" \
        --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
        --conf spark.kubernetes.allocation.pods.allocator=dev.posse.spark.PosseAllocator \
        --conf spark.kubernetes.executor.deleteOnTermination=false --conf spark.executor.maxNumFailures=2147483647 \
        --conf spark.kubernetes.executor.enableApiWatcher=false --master "k8s://$server" "$@"
else
    set -- --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "$@"
fi

exec "$program" \
    --conf spark.kubernetes.namespace=default \
    --conf spark.kubernetes.container.image=none \
    --conf spark.kubernetes.executor.podTemplateFile="$EXECUTOR_TEMPLATE" \
    --conf spark.kubernetes.executor.podTemplateContainerName=spark \
    --conf spark.kubernetes.executor.request.cores=100m \
    --conf spark.executor.memory=512m \
    --conf "spark.executor.extraJavaOptions=$JAVA_QUICK" \
    --driver-java-options "$JAVA_QUICK" \
    --conf spark.ui.enabled=false \
    --conf spark.pyspark.python="$(command -v python3)" \
    "$@"
