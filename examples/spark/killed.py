"""Kills executors with -9 in the middle: one at a stage boundary, one while it reads a shuffle.

The answer is the right one all the same.
"""

import sys
import threading
import time

from pyspark.sql import SparkSession

import executors


def running(stage):
    info = spark.sparkContext.statusTracker().getStageInfo(stage)
    return info is not None and info.numActiveTasks > 0


def slowly(pairs):
    """One side of a shuffle read that takes a while."""
    for pair in pairs:
        time.sleep(0.02)
        yield pair


spark = SparkSession.builder.appName("killed").getOrCreate()
executors.wait_until(spark, "two executors", lambda: len(executors.registered(spark)) == 2)
first = executors.registered(spark)
numbers = spark.sparkContext.parallelize(range(4000), 4).map(lambda n: (n % 1000, n))

# At a stage boundary: the map stage is done and cached, and its reader has not begun.
sums = numbers.reduceByKey(lambda a, b: a + b, 4).persist()
sums.count()
executors.kill(spark, first[0])
print(f"killed executor {first[0]} between two stages", flush=True)

# In a shuffle read: the second shuffle's reader runs on the other executor.
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


executors.wait_until(spark, "a shuffle read", is_reading)
time.sleep(1)
executors.kill(spark, first[1])
print(f"killed executor {first[1]} in a shuffle read", flush=True)
job.join(executors.DEADLINE_SECONDS)
if results != [sum(range(4000))]:
    sys.exit(f"the result is wrong: {results}")
executors.wait_until(spark, "two new executors", lambda: len(set(executors.registered(spark)) - set(first)) == 2)
print(f"the result is right; executors: {executors.registered(spark)} instead of {first}", flush=True)
spark.stop()
