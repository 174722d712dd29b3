"""Waits in its tasks until FLAG is gone, so that posse can go and come back meanwhile."""

import os
import sys
import time

from pyspark.sql import SparkSession

import executors

flag = sys.argv[1]
spark = SparkSession.builder.appName("away").getOrCreate()
executors.wait_until(spark, "two executors", lambda: len(executors.registered(spark)) == 2)
first = executors.registered(spark)
open(flag, "w", encoding="utf-8").close()
print(f"2 executors: {first}", flush=True)


def task(n):
    while os.path.exists(flag):
        time.sleep(0.2)
    return n


if spark.sparkContext.parallelize(range(4), 4).map(task).sum() != 6:
    sys.exit("the result is wrong")
# One was killed while posse was away: only a posse that came back replaces it.
executors.wait_until(spark, "a successor", lambda: len(set(executors.registered(spark)) - set(first)) == 1)
print(f"the result is right; executors: {executors.registered(spark)} after {first}", flush=True)
spark.stop()
