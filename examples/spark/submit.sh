#!/bin/sh
# The driver's command: spark-submit against the cluster of $KUBECONFIG, with posse's five lines.
# Needs SPARK_HOME, POSSE_SPARK_JAR and POSSE_CONTROL; arguments go to spark-submit. With --cluster
# as the first argument the driver is a pod, whose entry point is $POSSE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
server=$(sed -n 's/.*server: *"\{0,1\}\([^",}]*\).*/\1/p' "$KUBECONFIG" | head -n 1)

work=${SPARK_EXAMPLE_WORK:?a folder of its own}
# The embedded node pulls no image, so the template has the command. A real image has an entry point
# and needs no template.
cat > "$work/executor.yaml" <<YAML
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: spark
      command: [sh, "$here/executor.sh"]
      env:
        - {name: SPARK_HOME, value: "$SPARK_HOME"}
YAML

# Many JVMs run for a few seconds on few cores, so optimising compilation would only cost time.
java="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

if [ "${1:-}" = --cluster ]; then
    shift
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
    # The embedded cluster has no names for its services and no network policies.
    set -- --deploy-mode cluster --conf spark.kubernetes.driver.master="$server" \
        --conf spark.kubernetes.driver.podTemplateFile="$work/driver.yaml" \
        --conf spark.kubernetes.driver.podTemplateContainerName=spark-kubernetes-driver \
        --conf spark.kubernetes.driver.pod.excludedFeatureSteps=org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep \
        --conf spark.kubernetes.driver.request.cores=100m \
        --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark "$@"
else
    set -- --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "$@"
fi

exec "$SPARK_HOME/bin/spark-submit" \
    --master "k8s://$server" \
    --conf spark.kubernetes.allocation.pods.allocator=dev.posse.spark.PosseAllocator \
    --conf "spark.driver.extraClassPath=$POSSE_SPARK_JAR" \
    --conf spark.kubernetes.executor.deleteOnTermination=false \
    --conf spark.executor.maxNumFailures=2147483647 \
    --conf spark.kubernetes.executor.enableApiWatcher=false \
    --conf spark.kubernetes.namespace=default \
    --conf spark.kubernetes.container.image=none \
    --conf spark.kubernetes.executor.podTemplateFile="$work/executor.yaml" \
    --conf spark.kubernetes.executor.podTemplateContainerName=spark \
    --conf spark.kubernetes.executor.request.cores=100m \
    --conf spark.executor.memory=512m \
    --conf "spark.executor.extraJavaOptions=$java" \
    --driver-java-options "$java" \
    --conf spark.ui.enabled=false \
    --conf spark.pyspark.python="$(command -v python3)" \
    "$@"
