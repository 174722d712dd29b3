"""How long until COUNT executors have registered, and until a killed one is replaced.

timing.py COUNT START, where START is the start of spark-submit in milliseconds since 1970.
"""

import sys
import time

from pyspark.sql import SparkSession

import executors

count, start = int(sys.argv[1]), int(sys.argv[2]) / 1000
spark = SparkSession.builder.appName("numbers").getOrCreate()
ready = time.time()
executors.wait_until(spark, f"{count} executors", lambda: len(executors.registered(spark)) == count)
there = time.time()
victim = min(executors.registered(spark))
executors.kill(spark, victim)
killed = time.time()
successor = count + 1
executors.wait_until(spark, "a successor", lambda: successor in executors.registered(spark))
print(f"numbers: context {ready - start:.1f} s, {count} executors registered {there - start:.1f} s"
      f" ({there - ready:.1f} s after the context), killed -> successor registered {time.time() - killed:.1f} s",
      flush=True)
spark.stop()
