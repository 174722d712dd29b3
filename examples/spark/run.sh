#!/bin/sh
# Installs Spark into a private environment, builds the adapter, and runs the recipes on an embedded
# cluster: run.sh [--spark VERSION[,VERSION]...] [RECIPE]...
# VERSION is 4.3 (the default), 4.0, 3.5, or a whole one such as 4.1.4. README.md lists the recipes; without
# names the script runs wordcount, dynamic, killed, profiles and standalone. It takes some minutes, and
# 4 GB of memory for `dynamic`.
# Recipes after `real` run on a real API server from $KUBEBUILDER_ASSETS; `real` alone: wordcount and dynamic.
# POSSE: the binary (default: the one in target/ that was built last).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cd "$top"
EVICTIONS=${EVICTIONS:-50}
EXECUTORS=${EXECUTORS:-20}
# For `s3`. Versions of packages from PyPI.
MOTO=5.2.5
S3_JARS=1.4.5
# They have 200 MB.
DOWNLOAD_SECONDS_MAX=240
# Many JVMs run for a few seconds on few cores, so optimising compilation would only cost time.
JAVA_QUICK="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

fail() {
    echo "spark: FAILED: $*" >&2
    exit 1
}

# Exit code 77: not tested, because something cannot be installed.
cannot() {
    echo "spark: NOT TESTED: $*" >&2
    exit 77
}

versions=4.3
if [ "${1:-}" = --spark ]; then
    versions=${2:?a version of Spark, such as 4.0}
    shift 2
fi
case $versions in
*,*)
    for version in $(echo "$versions" | tr , ' '); do
        "$here/run.sh" --spark "$version" "$@"
    done
    exit
    ;;
4.3) spark=4.3.0 ;;
4.0) spark=4.0.5 ;;
3.5) spark=3.5.9 ;;
[0-9]*.[0-9]*.[0-9]*) spark=$versions ;;
*) fail "there is no Spark $versions: name 4.3, 4.0, 3.5, or a whole version" ;;
esac
# Each version has a folder.
home=$top/target/spark/$spark

command -v javac >/dev/null || cannot "javac is missing: install a JDK, 17 or later"
posse=${POSSE:-$(ls -t "$top"/target/*/release/posse "$top"/target/*/debug/posse 2>/dev/null | head -n 1)}
[ -x "$posse" ] || fail "posse is not built: run cargo build --release"

SPARK_HOME=$("$top/adapters/spark/install.sh" "$spark") || cannot "Spark $spark cannot be installed"
PATH=$home/venv/bin:$PATH
# One jar for all versions.
POSSE_SPARK_JAR=$top/target/spark/posse-spark.jar
PYTHONPATH=$here
PYTHONDONTWRITEBYTECODE=1
EXECUTOR_TEMPLATE=$home/executor.yaml
export PATH SPARK_HOME POSSE_SPARK_JAR PYTHONPATH PYTHONDONTWRITEBYTECODE EXECUTOR_TEMPLATE JAVA_QUICK
oldest=$("$top/adapters/spark/install.sh" oldest) || cannot "the Spark that the adapter is compiled against cannot be installed"
if [ ! -e "$POSSE_SPARK_JAR" ] || [ -n "$(find "$top/Cargo.toml" "$top/adapters/spark/src" "$top/adapters/spark/build.sh" -newer "$POSSE_SPARK_JAR")" ]; then
    "$top/adapters/spark/build.sh" "$oldest" "$POSSE_SPARK_JAR"
fi
echo "Spark $spark"
# The embedded node pulls no image, so the template has the command. A real image has an entry point
# and needs no template.
cat > "$EXECUTOR_TEMPLATE.$$" <<YAML
apiVersion: v1
kind: Pod
metadata:
  labels: {made-from: template}
spec:
  containers:
    - name: spark
      command: [sh, "$top/adapters/spark/executor.sh"]
      env:
        - {name: SPARK_HOME, value: "$SPARK_HOME"}
YAML
# In one step, because another run may be reading it.
mv "$EXECUTOR_TEMPLATE.$$" "$EXECUTOR_TEMPLATE"

# The cluster on which the recipes run: embedded or real.
where=embedded

# name, configuration, command...
posse() {
    work=$home/runs/$1
    config=$2
    shift 2
    rm -rf "$work"
    mkdir -p "$work"
    case $where in
    embedded) set -- --dev -- "$@" ;;
    real) set -- --kubeconfig "$KUBECONFIG" -- "$@" ;;
    esac
    SPARK_EXAMPLE_WORK=$work "$posse" run -f "$here/$config" --events "$work/events" "$@" > "$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        fail "the whole log is $work/log"
    }
    # Only the recipe's own lines, without those of Spark and posse.
    grep -E '^(all [0-9]+ executors|the audit log|numbers:|created:|[0-9]+ executors:|[0-9]+ evictions|killed executor|the result|a stopped|shuffle:)' "$work/log" || true
}

# name, options of observe.py, --, arguments of spark-submit...
watched() {
    name=$1
    shift
    options=''
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    posse "$name" posse.yaml python3 "$here/observe.py" $options sh "$here/submit.sh" "$@"
}

same_words() {
    . "$top/examples/wordcount/words.sh"
    cat "$top"/fixtures/text/*.txt | count | sort > "$work/want"
    sort "$work/out" > "$work/got"
    cmp "$work/want" "$work/got" || fail "the words differ: $work/want, $work/got"
    echo "same as sort | uniq -c: $(wc -l < "$work/got") words"
}

wordcount() {
    watched wordcount -- --conf spark.executor.instances=2 \
        "$here/wordcount.py" "$top/fixtures/text" "$home/runs/wordcount/out"
    same_words
}

# name, more options of spark-submit...
one_six_one() {
    name=$1
    shift
    watched "$name" -- "$@" --conf spark.dynamicAllocation.enabled=true \
        --conf spark.dynamicAllocation.minExecutors=1 --conf spark.dynamicAllocation.maxExecutors=6 \
        --conf spark.dynamicAllocation.executorIdleTimeout=3s \
        --conf spark.dynamicAllocation.shuffleTracking.enabled=true \
        --conf spark.dynamicAllocation.shuffleTracking.timeout=5s \
        "$here/dynamic.py" "$home/runs/$name/flag"
    ! grep 'ERROR.* Lost executor' "$work/log" >&2 || fail "Spark calls a planned end an error: $work/log"
}

dynamic() {
    one_six_one dynamic
}

# Executors that Spark decommissions move their blocks to others and then end. Without the last key an
# executor first waits for 30 s.
decommission() {
    one_six_one decommission --conf spark.decommission.enabled=true --conf spark.storage.decommission.enabled=true \
        --conf spark.storage.decommission.shuffleBlocks.enabled=true \
        --conf spark.storage.decommission.rddBlocks.enabled=true \
        --conf spark.test.executor.decommission.initial.sleep.millis=2000
}

killed() {
    watched killed -- --conf spark.executor.instances=2 "$here/killed.py"
}

profiles() {
    watched profiles --memory 0=896Mi --memory 1=984Mi -- \
        --conf spark.dynamicAllocation.enabled=true --conf spark.dynamicAllocation.maxExecutors=2 \
        "$here/profiles.py"
}

# A Java application: DataFrames and joins, with memory and GPUs for the executors. Its jar comes to them from Spark.
java_joins() {
    work=$home/runs/java/classes
    rm -rf "$work"
    mkdir -p "$work"
    # Without -Xlint:path: manifests of some of Spark's jars name jars that do not exist.
    javac -Xlint:all,-path -Werror --release 17 -cp "$SPARK_HOME/jars/*" -d "$work" "$here/Joins.java"
    jar cf "$home/joins.jar" -C "$work" .
    watched java --memory 0=900Mi --device nvidia.com/gpu=1 -- --class Joins --conf spark.executor.instances=2 \
        --conf spark.executor.memory=600m --conf spark.executor.memoryOverhead=300m \
        --conf spark.executor.resource.gpu.amount=1 --conf spark.executor.resource.gpu.vendor=nvidia.com \
        --conf spark.executor.resource.gpu.discoveryScript="$here/gpus.sh" --conf spark.task.resource.gpu.amount=1 \
        "$home/joins.jar" made-up-0
}

# A Scala application, by the compiler in Spark's jars, with speculation.
scala() {
    java -cp "$SPARK_HOME/jars/*" scala.tools.nsc.Main -usejavacp -deprecation -Werror \
        -d "$home/speculation.jar" "$here/Speculation.scala"
    watched scala -- --class Speculation --conf spark.executor.instances=2 --conf spark.speculation=true \
        --conf spark.speculation.quantile=0.5 --conf spark.speculation.minTaskRuntime=500ms "$home/speculation.jar"
}

standalone() {
    posse standalone standalone.yaml sh "$here/standalone.sh" \
        "$here/wordcount.py" "$top/fixtures/text" "$home/runs/standalone/out"
    same_words
}

stopped() {
    watched stopped -- --conf spark.executor.instances=2 "$here/stopped.py"
}

evictions() {
    watched evictions -- --conf spark.executor.instances=4 --conf spark.task.maxFailures=1 \
        "$here/evictions.py" "$EVICTIONS" "$home/runs/evictions/flag"
}

# An external shuffle service: ../shuffle.
shuffle() {
    export POSSE="$posse"
    posse shuffle posse.yaml python3 "$here/../shuffle/check.py" "$home/runs/shuffle"
}

# A volume for each slot, on which Spark finds the shuffle files of lost executors: ../shuffle.
recovery() {
    posse recovery posse.yaml python3 "$here/../shuffle/volumes.py" "$home/runs/recovery"
}

# Kills posse with -9 while the application works, then an executor, and starts posse again.
away() (
    work=$home/runs/away
    rm -rf "$work"
    mkdir -p "$work"
    export SPARK_EXAMPLE_WORK="$work" KUBECONFIG="$work/kubeconfig" POSSE_CONTROL="unix:$work/socket"
    "$posse" dev --kubeconfig "$KUBECONFIG" > "$work/dev.log" 2>&1 &
    cluster=$! keeper='' driver=''
    trap 'kill $cluster; [ -z "$keeper$driver" ] || kill -9 $keeper $driver 2>/dev/null' EXIT
    await "$KUBECONFIG" $cluster
    keep
    python3 "$here/observe.py" sh "$here/submit.sh" --conf spark.executor.instances=2 \
        "$here/away.py" "$work" > "$work/log" 2>&1 &
    driver=$!
    await "$work/working" $driver
    kill -9 "$keeper"
    rm -f "$work/socket"
    touch "$work/away"
    await "$work/killed" $driver
    keep
    touch "$work/back"
    pid=$driver driver=''
    wait "$pid" || fail "the whole log is $work/log"
    grep -E "^the result|^all " "$work/log"
    kill "$keeper"
    keeper=''
)

# Starts posse without a driver, always with the same instance.
keep() {
    "$posse" run -f "$here/posse.yaml" --instance again --control "$POSSE_CONTROL" >> "$work/posse.log" 2>&1 &
    keeper=$!
    await "$work/socket" $keeper
}

# Waits for a file ($1) that the process $2 creates.
await() {
    while ! [ -e "$1" ]; do
        kill -0 "$2" 2>/dev/null || fail "$1 was not created: look at the logs in $work"
        sleep 0.2
    done
}

# Cluster mode: the driver is a pod too, in a cluster with RBAC.
in_cluster() (
    work=$home/runs/cluster
    rm -rf "$work"
    mkdir -p "$work"
    export SPARK_EXAMPLE_WORK="$work" KUBECONFIG="$work/kubeconfig" POSSE="$posse"
    "$posse" dev --rbac --kubeconfig "$KUBECONFIG" > "$work/dev.log" 2>&1 &
    cluster=$!
    trap 'kill $cluster' EXIT
    await "$KUBECONFIG" $cluster
    python3 "$here/cluster.py" --conf spark.executor.instances=2 \
        "local://$here/wordcount.py" "$top/fixtures/text" "$work/out" > "$work/log" 2>&1 ||
        fail "the whole log is $work/log"
    grep -E "^all " "$work/log"
    same_words
)

# `posse submit`: the driver is a Job. One application, one with files, and a stream whose driver is lost in the middle.
submit() {
    submitted submit words files streaming
}

# folder, applications...
submitted() (
    work=$home/runs/$1
    shift
    rm -rf "$work"
    mkdir -p "$work"
    export KUBECONFIG="$work/kubeconfig" POSSE="$posse"
    "$posse" dev --rbac --kubeconfig "$KUBECONFIG" > "$work/dev.log" 2>&1 &
    cluster=$!
    trap 'kill $cluster' EXIT
    await "$KUBECONFIG" $cluster
    python3 "$here/submit/check.py" "$work/data" "$@" > "$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        fail "the whole log is $work/log"
    }
    grep -E "^submit: " "$work/log"
    cp "$work/data/out" "$work/out"
    same_words
)

# The same jar with each other Spark that is installed below target/: the adapter's own tests, and a word count.
others() {
    for version in "$top"/target/spark/*/version; do
        folder=$(dirname "$version")
        [ "$folder" != "$home" ] || continue
        "$here/run.sh" --spark "$(basename "$folder")" prepare wordcount
    done
}

# An application whose executors fall silent one after the other. Spark kills and replaces them without end. The budget
# of Spark's own key ends the run.
hanging() {
    work=$home/runs/hanging
    rm -rf "$work"
    mkdir -p "$work"
    code=0
    PATH=$(dirname "$posse"):$PATH timeout 300 "$top/adapters/spark/posse-spark-submit" --dev \
        --conf spark.executor.instances=2 --conf spark.executor.memory=512m --conf spark.executor.maxNumFailures=2 \
        --conf spark.kubernetes.allocation.batch.delay=2s --conf spark.task.maxFailures=1000 \
        --conf spark.executor.heartbeatInterval=1s --conf spark.network.timeout=8s --conf spark.network.timeoutInterval=1s \
        --conf "spark.executor.extraJavaOptions=$JAVA_QUICK" --driver-java-options "$JAVA_QUICK" \
        --conf spark.ui.enabled=false "$here/hanging.py" > "$work/log" 2>&1 || code=$?
    [ $code = 11 ] || fail "the exit code is $code, and should be 11: the whole log is $work/log"
    grep -q 'budget' "$work/log" || fail "no budget in $work/log"
    told=$(grep -c 'no effect with posse: spark.kubernetes.allocation.batch.delay ' "$work/log") || true
    [ "$told" = 1 ] || fail "a key without effect was told $told times: $work/log"
    echo "ended by the budget of spark.executor.maxNumFailures"
}

# Mistakes of which one line tells: a jar of another posse, and an image without the program that an executor starts. The budget
# ends the run.
mistakes() (
    work=$home/runs/mistakes
    rm -rf "$work"
    mkdir -p "$work/dev/posse/spark"
    cp "$POSSE_SPARK_JAR" "$work/other.jar"
    echo 0.0.9 > "$work/dev/posse/spark/version"
    jar uf "$work/other.jar" -C "$work" dev/posse/spark/version
    sed 's/command: .*/command: [\/opt\/no-entrypoint.sh]/' "$EXECUTOR_TEMPLATE" > "$work/executor.yaml"
    sed '$a failures: {start: 1}' "$here/posse.yaml" > "$work/posse.yaml"
    code=0
    SPARK_EXAMPLE_WORK=$work POSSE_SPARK_JAR=$work/other.jar EXECUTOR_TEMPLATE=$work/executor.yaml timeout 300 "$posse" run --dev \
        -f "$work/posse.yaml" -- sh "$here/submit.sh" --conf spark.executor.instances=2 --conf spark.kubernetes.container.image=python:3.12 \
        "$here/wordcount.py" "$top/fixtures/text" "$work/out" > "$work/log" 2>&1 || code=$?
    [ $code = 11 ] || fail "the exit code is $code, and should be 11: the whole log is $work/log"
    for line in 'posse: this posse-spark.jar is of posse 0.0.9' 'posse: executor [0-9]* cannot start in the image python:3.12 (exec: '; do
        told=$(grep -c "$line" "$work/log") || true
        [ "$told" = 1 ] || fail "the line '$line' was told $told times: $work/log"
    done
    echo "told: a jar of another posse, an image without Spark"
)

# Four nodes, two of which have the data: the executors that dynamic allocation asks for come to these two.
locality() (
    work=$home/runs/locality
    rm -rf "$work"
    mkdir -p "$work"
    export SPARK_EXAMPLE_WORK="$work" KUBECONFIG="$work/kubeconfig"
    "$posse" dev --nodes 4 --kubeconfig "$KUBECONFIG" > "$work/dev.log" 2>&1 &
    cluster=$!
    trap 'kill $cluster' EXIT
    await "$KUBECONFIG" $cluster
    for nodes in '' dev-node-1,dev-node-3; do
        "$posse" run -f "$here/posse.yaml" --events "$work/events" -- sh "$here/submit.sh" \
            --conf spark.dynamicAllocation.enabled=true --conf spark.dynamicAllocation.maxExecutors=4 \
            --conf spark.dynamicAllocation.shuffleTracking.enabled=true --conf spark.locality.wait=0 \
            "$here/locality.py" "$nodes" > "$work/log" 2>&1 || fail "the whole log is $work/log"
        all=$(grep -c '"event":"executor_requested"' "$work/events") || true
        there=$(grep '"event":"executor_running"' "$work/events" | grep -cE '"node":"dev-node-[13]"') || true
        echo "executors on the nodes of the data${nodes:+, which Spark names}: $there of $all"
        rm "$work/events"
    done
    [ "$there" = 4 ] || fail "executors elsewhere: the whole log is $work/log"
)

# The node of all executors is drained after the map stage: their successors get the shuffle files.
drained() {
    node_ends drained 120
}

# The same as a spot node's end: a handler cordons it, then drains it, and two minutes later the machine is gone.
notice() {
    node_ends notice 90 notice
}

# folder, grace period of the executors in seconds, an option of drained.py...
node_ends() (
    work=$home/runs/$1 grace=$2
    shift 2
    rm -rf "$work"
    mkdir -p "$work"
    # The embedded node runs the hook beside the executor, and not in a container whose first process this is. Without
    # a signal the executor learns of its end from the driver alone.
    printf '#!/bin/sh\nexec sleep infinity\n' > "$work/hook"
    chmod +x "$work/hook"
    sed 's/^spec:/&\n  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference:\
    {matchExpressions: [{key: kubernetes.io\/hostname, operator: In, values: [dev-node-0]}]}}]}}/' "$EXECUTOR_TEMPLATE" \
        > "$work/executor.yaml"
    export SPARK_EXAMPLE_WORK="$work" KUBECONFIG="$work/kubeconfig" EXECUTOR_TEMPLATE="$work/executor.yaml"
    "$posse" dev --nodes 2 --kubeconfig "$KUBECONFIG" > "$work/dev.log" 2>&1 &
    cluster=$!
    trap 'kill $cluster' EXIT
    await "$KUBECONFIG" $cluster
    python3 "$here/drained.py" "$@" "$work" dev-node-0 "$posse" run -f "$here/posse.yaml" --events "$work/events" -- \
        sh "$here/submit.sh" --conf spark.executor.instances=2 --conf spark.decommission.enabled=true \
        --conf spark.storage.decommission.enabled=true --conf spark.storage.decommission.shuffleBlocks.enabled=true \
        --conf spark.kubernetes.executor.terminationGracePeriodSeconds="$grace" \
        --conf spark.kubernetes.decommission.script="$work/hook" --conf spark.eventLog.enabled=true \
        --conf spark.eventLog.dir="file://$work/spark-events" --conf spark.eventLog.rolling.enabled=false \
        --conf spark.eventLog.compress=false "$here/../shuffle/app.py" > "$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        fail "the whole log is $work/log"
    }
    grep '^drained: ' "$work/log"
)

# Metrics of posse, the driver and the executors while it works, and the finished application in Spark's HistoryServer.
history() {
    rm -rf "$home/runs/history"
    mkdir -p "$home/runs/history/events"
    with_history history "file://$home/runs/history/events"
}

# The same with the event log on an S3 service, which moto plays. PyPI has Hadoop's client for S3 in one package, and that is one
# for Hadoop 3.3, as Spark 3.5 has it.
s3() (
    work=$home/runs/s3 parts=$top/target/s3
    rm -rf "$work"
    mkdir -p "$work"
    case $spark in
    3.5.*) ;;
    *) cannot "s3: no client for the Hadoop of Spark $spark can be installed: name --spark 3.5" ;;
    esac
    if [ ! -e "$parts/installed" ]; then
        rm -rf "$parts"
        python3 -m venv "$parts/venv"
        timeout "$DOWNLOAD_SECONDS_MAX" "$parts/venv/bin/pip" install --quiet --disable-pip-version-check "moto[server]==$MOTO" ||
            cannot "s3: moto cannot be installed"
        timeout "$DOWNLOAD_SECONDS_MAX" pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$parts" "sagemaker-pyspark==$S3_JARS" ||
            cannot "s3: hadoop-aws cannot be installed"
        mkdir "$parts/jars"
        tar xzf "$parts"/sagemaker*.tar.gz -C "$parts/jars" --strip-components=3 --wildcards '*/hadoop-aws-*.jar' '*/aws-java-sdk-bundle-*.jar'
        rm "$parts"/sagemaker*.tar.gz
        touch "$parts/installed"
    fi
    port=$(free_port)
    "$parts/venv/bin/moto_server" -H 127.0.0.1 -p "$port" > "$work/moto.log" 2>&1 &
    service=$!
    trap 'kill $service' EXIT
    url=http://127.0.0.1:$port
    # Spark makes no folder for event logs, and the root of a bucket is none.
    for path in events events/logs/; do
        until curl --silent --fail --output /dev/null -X PUT "$url/$path"; do
            kill -0 $service 2>/dev/null || fail "moto does not run: $work/moto.log"
            sleep 0.2
        done
    done
    export SPARK_DIST_CLASSPATH="$parts/jars/*"
    with_history s3 s3a://events/logs "spark.hadoop.fs.s3a.endpoint=$url" spark.hadoop.fs.s3a.path.style.access=true \
        spark.hadoop.fs.s3a.aws.credentials.provider=org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider \
        spark.hadoop.fs.s3a.access.key=key spark.hadoop.fs.s3a.secret.key=secret
    # The application comes by the same service.
    classes=$SPARK_DIST_CLASSPATH
    UPLOAD_PATH=s3a://events/uploads UPLOAD_KEYS="$keys spark.kubernetes.driverEnv.SPARK_DIST_CLASSPATH=$classes spark.executor.extraClassPath=$classes" \
        submitted s3-submit words
    curl --silent --fail "$url/events?list-type=2" | grep -q 'uploads/spark-upload-[-0-9a-f]*/wordcount.py<' ||
        fail "s3: the application did not come by the upload path"
)

free_port() {
    PYTHONPATH=$top/examples python3 -c 'import checks; print(checks.free_port())'
}

# name, URL for the event log, further keys of Spark and its HistoryServer...
with_history() {
    work=$home/runs/$1 events=$2
    shift 2
    keys=$*
    for key in $keys; do
        set -- "$@" --conf "$key"
        shift
    done
    port=$(free_port)
    sed "\$a metrics: 127.0.0.1:$port" "$here/posse.yaml" > "$work/posse.yaml"
    SPARK_EXAMPLE_WORK=$work "$posse" run --dev -f "$work/posse.yaml" -- sh "$here/submit.sh" \
        --conf spark.executor.instances=2 --conf spark.ui.enabled=true --conf spark.ui.port=0 \
        "$@" --conf spark.eventLog.enabled=true --conf "spark.eventLog.dir=$events" \
        --conf spark.ui.prometheus.enabled=true --conf spark.executor.heartbeatInterval=1s \
        --conf 'spark.metrics.conf.*.sink.prometheusServlet.class=org.apache.spark.metrics.sink.PrometheusServlet' \
        --conf 'spark.metrics.conf.*.sink.prometheusServlet.path=/metrics/prometheus' \
        "$here/history.py" run "127.0.0.1:$port" > "$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        fail "the whole log is $work/log"
    }
    grep -E '^history: ' "$work/log"
    # shellcheck disable=SC2086
    python3 "$here/history.py" check "$events" "$work/history.log" "$SPARK_HOME/bin/spark-class" "$(free_port)" $keys
}

# From a clean virtual environment to a word count: two commands, and the files of this folder.
pip() {
    work=$home/runs/pip
    rm -rf "$work"
    mkdir -p "$work"
    wheel=$(python3 "$top/clients/python/wheel.py" "$posse" "$work" "$POSSE_SPARK_JAR")
    python3 -m venv "$work/venv"
    PIP_CONSTRAINT=$work/constraint
    export PIP_CONSTRAINT
    echo "pyspark==$spark" > "$PIP_CONSTRAINT"
    env -i HOME="$work" PATH="$work/venv/bin:/usr/local/bin:/usr/bin:/bin" PIP_CONSTRAINT="$PIP_CONSTRAINT" PIP_NO_COMPILE=1 \
        PIP_CACHE_DIR="$("$home/venv/bin/pip" cache dir)" sh -c '
            set -e
            pip install --quiet --disable-pip-version-check "$1[spark]"
            posse-spark-submit --dev --conf spark.executor.instances=2 "$2/wordcount.py" "$3" "$4"
        ' sh "$wheel" "$here" "$top/fixtures/text" "$work/out" > "$work/log" 2>&1 || {
        tail -n 60 "$work/log" >&2
        fail "the whole log is $work/log"
    }
    same_words
    rm -rf "$work/venv" "$wheel"
}

# Runs under posse and under Spark's own allocator in turn. The last --conf of a key wins.
timing() {
    for allocator in posse spark posse spark; do
        set --
        if [ $allocator = spark ]; then
            set -- --conf spark.kubernetes.allocation.pods.allocator=direct \
                --conf spark.kubernetes.executor.deleteOnTermination=true \
                --conf spark.kubernetes.executor.enableApiWatcher=true
        fi
        echo "allocator: $allocator"
        # shellcheck disable=SC2016
        posse timing posse.yaml sh -c 'exec sh "$0" "$@" "$(date +%s%3N)"' "$here/submit.sh" "$@" \
            --conf spark.executor.instances="$EXECUTORS" "$here/timing.py" "$EXECUTORS"
    done
}

# Runs the next recipes on a real control plane: etcd and kube-apiserver, with node.py as kubelet.
real() {
    [ -x "${KUBEBUILDER_ASSETS:-}/kube-apiserver" ] || fail "KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver"
    work=$home/runs/plane
    rm -rf "$work"
    mkdir -p "$home/runs"
    python3 "$here/plane.py" "$work" &
    plane=$!
    trap 'kill $plane; wait $plane' EXIT
    export KUBECONFIG="$work/kubeconfig" AUDIT_LOG="$work/audit.log"
    await "$KUBECONFIG" $plane
    where=real
}

# The lines above have installed everything.
install() { :; }

# Runs the adapter's own tests, which need no cluster.
prepare() {
    "$top/adapters/spark/test.sh" "$SPARK_HOME" "$POSSE_SPARK_JAR" 2> "$home/adapter.log" || {
        tail -n 20 "$home/adapter.log" >&2
        fail "the adapter's own tests failed"
    }
}

[ "$*" != real ] || set -- real wordcount dynamic
[ $# -gt 0 ] || set -- wordcount dynamic killed profiles standalone
for recipe; do
    case $recipe in
    wordcount | dynamic | killed | profiles | standalone | java | scala | stopped | evictions | away | decommission | drained | notice | hanging | mistakes | history | s3 | locality | pip) ;;
    in_cluster | submit | shuffle | recovery | timing | real | install | prepare | others) ;;
    *) fail "there is no recipe $recipe: see examples/spark/README.md" ;;
    esac
done
for recipe; do
    from=$(date +%s)
    echo "== $recipe"
    case $recipe in
    java) java_joins ;;
    *) "$recipe" ;;
    esac
    echo "-- $recipe: $(($(date +%s) - from)) s"
done
# For SUPPORT.md.
[ -z "${TESTED:-}" ] || [ "$*" = install ] || "$top/.ci/support" Spark \
    "$(python3 -I -c 'from importlib.metadata import version; print(version("pyspark"))')"
