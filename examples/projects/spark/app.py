"""Put your own application here."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("my-spark").getOrCreate()
squares = spark.sparkContext.parallelize(range(1, 101), 8).map(lambda n: n * n)
print("sum of squares:", squares.sum(), flush=True)
spark.stop()
