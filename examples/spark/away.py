"""Runs an application while posse is killed and restarted, and kills an executor in between.

away.py FOLDER: creates FOLDER/working, waits for FOLDER/away, creates FOLDER/killed, waits for FOLDER/back.
"""

import os
import sys
import threading
import time

from pyspark.sql import SparkSession

import executors

folder = sys.argv[1]
spark = SparkSession.builder.appName("away").getOrCreate()
executors.wait_until(spark, "two executors", lambda: len(executors.registered(spark)) == 2)
first = executors.registered(spark)


def task(n):
    while not os.path.exists(f"{folder}/back"):
        time.sleep(0.2)
    return n


results = []
job = threading.Thread(target=lambda: results.append(spark.sparkContext.parallelize(range(4), 4).map(task).sum()))
job.start()
stages = spark.sparkContext.statusTracker()
executors.wait_until(spark, "tasks", lambda: stages.getActiveStageIds())
open(f"{folder}/working", "w", encoding="utf-8").close()
executors.wait_until(spark, "posse away", lambda: os.path.exists(f"{folder}/away"))
executors.kill(spark, first[0])
open(f"{folder}/killed", "w", encoding="utf-8").close()
job.join(executors.DEADLINE_SECONDS)
if results != [6]:
    sys.exit(f"the result is wrong: {results}")
# Only the restarted posse can replace it.
executors.wait_until(spark, "a successor", lambda: len(set(executors.registered(spark)) - set(first)) == 1)
print(f"the result is right; executors: {executors.registered(spark)} after {first}", flush=True)
spark.stop()
