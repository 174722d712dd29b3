"""Stops the context but not the process: 30 s later there is no executor, no ConfigMap, no new create."""

import sys
import time

from pyspark.sql import SparkSession

import observe

spark = SparkSession.builder.appName("stopped").getOrCreate()
if spark.sparkContext.parallelize(range(100), 4).sum() != 4950:
    sys.exit("the result is wrong")
if not observe.remaining():
    sys.exit("there are no executors to be left behind")
highest = max(int(pod["metadata"]["labels"]["spark-exec-id"]) for pod in observe.executors())
spark.stop()
time.sleep(30)
if observe.remaining():
    sys.exit(f"left behind by a stopped context: {observe.remaining()}")

# A second context in the same process; its first executor's id shows how many were created.
spark = SparkSession.builder.appName("again").getOrCreate()
if spark.sparkContext.parallelize(range(100), 4).sum() != 4950:
    sys.exit("the second result is wrong")
pods = observe.executors()
lowest = min(int(pod["metadata"]["labels"]["spark-exec-id"]) for pod in pods)
if lowest != highest + 1:
    sys.exit(f"executors were created after the stop: {highest}, then {lowest}")
print("a stopped context leaves nothing, and the next one works", flush=True)
spark.stop()
