"""Dynamic allocation with shuffle tracking, 1 -> 6 -> 1: prints the executors' ids at each step.

dynamic.py FLAG: the work continues as long as this file exists.
"""

import os
import sys
import threading
import time

from pyspark.sql import SparkSession

import executors


def wait_for(count):
    executors.wait_until(spark, f"{count} executors", lambda: len(executors.registered(spark)) == count)
    print(f"{count} executors: {executors.registered(spark)}", flush=True)


def lasting(n):
    while os.path.exists(flag):
        time.sleep(0.2)
    return n % 3, n


def work():
    # Twelve tasks for executors of one core, and a shuffle behind them.
    slow = spark.sparkContext.parallelize(range(12), 12).map(lasting)
    results.extend(slow.reduceByKey(lambda a, b: a + b, 6).collect())


flag = sys.argv[1]
open(flag, "w", encoding="utf-8").close()
spark = SparkSession.builder.appName("dynamic").getOrCreate()
wait_for(1)
results = []
job = threading.Thread(target=work, daemon=True)
job.start()
wait_for(6)
os.unlink(flag)
job.join()
# Executors with shuffle data stay until Spark forgets the shuffle.
spark.sparkContext._jvm.System.gc()
wait_for(1)
if sorted(results) != [(0, 18), (1, 22), (2, 26)]:
    sys.exit(f"the result is wrong: {results}")
print("the result is right", flush=True)
spark.stop()
