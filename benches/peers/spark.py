"""Asks Spark's own allocator for executors, and keeps the application alive: spark.py MASTER NAME=VALUE...

The executors never register: their pods are played by the benchmark's node.
"""

import sys
import time

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("peers").master(sys.argv[1])
for setting in sys.argv[2:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
while True:
    time.sleep(3600)
