"""The application of check.py: runs a map stage, kills all of its executors, and then runs the reduce stage.

Prints the sum. With $SERVICE_PORT it also kills the shuffle service in between, and waits for the next one. With
$WITH_VOLUMES the next executors must get the volumes of the first ones, and `after another shuffle` runs one before the
reduce stage. With $KILL_AT it creates this file after the map stage, and nodes.py kills and looks at volumes. With $N_EXECUTORS
there are more than two, and ../spark/spot.py writes into the file $LOST_AT which of them the cluster has ended.
"""

import json
import os
import signal
import socket
import sys
import time

from pyspark.sql import SparkSession

import claims
import executors
import kube

NUMBERS, MAPS, REDUCES = 4000, 8, 4
PORT = os.environ.get("SERVICE_PORT")
WITH_VOLUMES = os.environ.get("WITH_VOLUMES")
KILL_AT = os.environ.get("KILL_AT")
LOST_AT = os.environ.get("LOST_AT")
N_EXECUTORS = int(os.environ.get("N_EXECUTORS", "2"))


def answers():
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(PORT))) == 0


def kill_service():
    """Kills the process with the service's class and this run's port on its command line."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if "org.apache.spark.deploy.ExternalShuffleService" in words and any(
                word == f"-Dspark.shuffle.service.port={PORT}" for word in words):
            os.kill(int(pid), signal.SIGKILL)
            return
    sys.exit("no process of the shuffle service")


def check_affinity():
    """The adapter must have passed on spark.posse.beside."""
    pods = [pod for pod in kube.Api("example-shuffle").get(kube.PODS)["items"]
            if pod["metadata"].get("labels", {}).get("spark-role") == "executor"]
    wrong = [pod["metadata"]["name"] for pod in pods if "podAffinity" not in pod["spec"].get("affinity", {})]
    if wrong or not pods:
        sys.exit(f"executors without affinity to the service: {wrong} of {len(pods)}")


def run_map_stage(shuffled):
    """Runs the tasks that write the shuffle, and none that read it."""
    read = shuffled._jrdd.rdd().dependencies().apply(0).rdd()
    stage = spark.sparkContext._jsc.sc().submitMapStage(read.dependencies().apply(0))
    executors.wait_until(spark, "the map stage", stage.isCompleted)


def run_another_shuffle(wanted):
    """Lets these executors write shuffle files: before the first one an executor looks for files on its volume."""
    def with_executor(pair):
        time.sleep(0.5)
        return pair[0], int(os.environ["SPARK_EXECUTOR_ID"])

    def have_all_written():
        another = spark.sparkContext.parallelize([(0, 0), (1, 1)], 2).map(with_executor)
        return set(another.partitionBy(2).values().collect()) >= wanted

    spark.sparkContext.setLocalProperty("another.shuffle", "true")
    executors.wait_until(spark, "a shuffle file of each executor", have_all_written)
    spark.sparkContext.setLocalProperty("another.shuffle", None)


spark = SparkSession.builder.appName("shuffle").getOrCreate()
executors.wait_until(spark, "the executors", lambda: len(executors.registered(spark)) == N_EXECUTORS)
numbers = spark.sparkContext.parallelize(range(NUMBERS), MAPS).map(lambda n: (n % 100, n))
shuffled = numbers.partitionBy(REDUCES)
run_map_stage(shuffled)
first = executors.registered(spark)
looks = WITH_VOLUMES and not KILL_AT
before = claims.of_executors(kube.Api("example-shuffle")) if looks else {}
if KILL_AT:
    with open(KILL_AT, "w", encoding="utf-8"):
        pass
else:
    for executor in first:
        executors.kill(spark, executor)
if PORT:
    check_affinity()
    kill_service()
    executors.wait_until(spark, "the next service", answers)
if LOST_AT:
    executors.wait_until(spark, "the end of executors", lambda: os.path.exists(LOST_AT))
    with open(LOST_AT, encoding="utf-8") as file:
        lost = set(json.load(file))
else:
    lost = set(first)
executors.wait_until(spark, "new executors", lambda: len(set(executors.registered(spark)) - lost) == N_EXECUTORS)
executors.wait_until(spark, "the lost executors to be removed", lambda: not lost & set(executors.registered(spark)))
new = set(executors.registered(spark)) - set(first)
if looks:
    after = claims.of_executors(kube.Api("example-shuffle"))
    claims.check(before, {one: after[one] for one in new}, os.path.join(os.environ["SPARK_EXAMPLE_WORK"], "events"))
if WITH_VOLUMES == "after another shuffle":
    run_another_shuffle(new)
total = shuffled.map(lambda pair: pair[1]).sum()
if total != sum(range(NUMBERS)):
    sys.exit(f"the result is wrong: {total}")
print(f"the result is right; executors: {executors.registered(spark)} instead of {first}", flush=True)
spark.stop()
