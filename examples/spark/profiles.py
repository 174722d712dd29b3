"""Two resource profiles at once, whose executors differ in memory. Prints the profiles' ids."""

import sys

from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("profiles").getOrCreate()
requests = ExecutorResourceRequests().memory("600m").cores(1)
bigger = ResourceProfileBuilder().require(requests).require(TaskResourceRequests().cpus(1)).build

plain = spark.sparkContext.parallelize(range(100), 2).map(lambda n: (n % 2, n)).reduceByKey(lambda a, b: a + b)
other = spark.sparkContext.parallelize(range(100), 2).withResources(bigger).map(lambda n: n * 2)
if sorted(plain.collect()) != [(0, 2450), (1, 2500)] or other.sum() != 9900:
    sys.exit("the result is wrong")
print(f"the result is right; profiles: 0 512m, {bigger.id} 600m", flush=True)
spark.stop()
