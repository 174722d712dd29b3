"""Kills executors with -9 in the middle: one at a stage boundary, one while it reads a shuffle.

The answer is the right one all the same.
"""

import os
import signal
import sys
import threading
import time

from pyspark.sql import SparkSession

DEADLINE_SECONDS = 150


def kill(executor):
    """The process of an executor, found by its id in its environment."""
    wanted = f"SPARK_EXECUTOR_ID={executor}".encode()
    app = f"SPARK_APPLICATION_ID={spark.sparkContext.applicationId}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                is_java = b"KubernetesExecutorBackend" in file.read()
        except OSError:
            continue
        if is_java and wanted in environ and app in environ:
            os.kill(int(pid), signal.SIGKILL)
            return
    sys.exit(f"no process of executor {executor}")


def executors():
    infos = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    ids = [infos.apply(i).id() for i in range(infos.size())]
    return sorted(int(number) for number in ids if number != "driver")


def wait_until(what, done):
    until = time.monotonic() + DEADLINE_SECONDS
    while not done():
        if time.monotonic() > until:
            sys.exit(f"not within {DEADLINE_SECONDS} s: {what}")
        time.sleep(0.1)


def running(stage):
    info = spark.sparkContext.statusTracker().getStageInfo(stage)
    return info is not None and info.numActiveTasks > 0


def slowly(pairs):
    """One side of a shuffle read that takes a while."""
    for pair in pairs:
        time.sleep(0.02)
        yield pair


spark = SparkSession.builder.appName("killed").getOrCreate()
wait_until("two executors", lambda: len(executors()) == 2)
first = executors()
numbers = spark.sparkContext.parallelize(range(4000), 4).map(lambda n: (n % 1000, n))

# At a stage boundary: the map side is done and kept, its reader has not begun.
sums = numbers.reduceByKey(lambda a, b: a + b, 4).persist()
sums.count()
kill(first[0])
print(f"killed executor {first[0]} between two stages", flush=True)

# In a shuffle read: the second shuffle's reader is at work on the other one.
again = sums.map(lambda pair: (pair[0] % 500, pair[1])).partitionBy(4)
read = again.mapPartitions(slowly)
results = []
job = threading.Thread(target=lambda: results.append(read.map(lambda pair: pair[1]).sum()))
job.start()
stages = spark.sparkContext.statusTracker()


def is_reading():
    active = stages.getActiveStageIds()
    return bool(active) and max(active) > 1 and running(max(active)) and not any(
        running(stage) for stage in active if stage != max(active))


wait_until("a shuffle read", is_reading)
time.sleep(1)
kill(first[1])
print(f"killed executor {first[1]} in a shuffle read", flush=True)
job.join(DEADLINE_SECONDS)
if results != [sum(range(4000))]:
    sys.exit(f"the result is wrong: {results}")
wait_until("two new executors", lambda: len(executors()) == 2 and not set(executors()) & set(first))
print(f"the result is right; executors: {executors()} instead of {first}", flush=True)
spark.stop()
