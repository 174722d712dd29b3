"""Stops the context and lives on: 30 s later there is no executor, no ConfigMap and no new create."""

import sys
import time

from pyspark.sql import SparkSession

import witness

spark = SparkSession.builder.appName("stopped").getOrCreate()
if spark.sparkContext.parallelize(range(100), 4).sum() != 4950:
    sys.exit("the result is wrong")
if not witness.leftovers():
    sys.exit("there are no executors to be left behind")
highest = max(int(pod["metadata"]["labels"]["spark-exec-id"]) for pod in witness.executors())
spark.stop()
time.sleep(30)
if witness.leftovers():
    sys.exit(f"left behind by a stopped context: {witness.leftovers()}")

# A second context in the same process; its first executor's id tells how many were created.
spark = SparkSession.builder.appName("again").getOrCreate()
if spark.sparkContext.parallelize(range(100), 4).sum() != 4950:
    sys.exit("the second result is wrong")
pods = witness.executors()
lowest = min(int(pod["metadata"]["labels"]["spark-exec-id"]) for pod in pods)
if lowest != highest + 1:
    sys.exit(f"executors were created after the stop: {highest}, then {lowest}")
print("a stopped context leaves nothing, and the next one begins anew", flush=True)
spark.stop()
