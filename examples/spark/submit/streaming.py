"""Structured streaming with a checkpoint: copies the numbers in DATA/in to DATA/out, one file a batch.

streaming.py DATA: when DATA/complete exists and all files are processed, it writes DATA/result and ends. A driver
that is started again goes on behind the last batch in DATA/checkpoint.
"""

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

data = sys.argv[1]
spark = SparkSession.builder.appName("streaming").getOrCreate()
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{data}/in")
numbers = lines.select(f.col("value").cast("long").alias("number")).repartition(2)
query = (numbers.writeStream.format("json").option("path", f"{data}/out")
         .option("checkpointLocation", f"{data}/checkpoint").trigger(processingTime="1 second").start())
while not os.path.exists(f"{data}/complete"):
    # Raises the error of a query that has failed.
    query.awaitTermination(1)
query.processAllAvailable()
batches = [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"] > 0]
query.stop()
# The sink's own log says which files of the output count: a batch that was begun twice counts once.
sums = spark.read.json(f"{data}/out").agg(f.count("number"), f.countDistinct("number"), f.sum("number")).collect()[0]
with open(f"{data}/result", "w", encoding="utf-8") as file:
    json.dump({"batches": batches, "rows": sums[0], "distinct": sums[1], "sum": sums[2]}, file)
print(f"the stream ended: batches {batches} in this attempt, {sums[0]} rows", flush=True)
spark.stop()
