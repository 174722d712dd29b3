"""Tasks whose data is on the nodes of the argument, comma-separated, or nowhere. Dynamic allocation asks for the executors."""

import sys
import time

from pyspark.rdd import RDD
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.sql import SparkSession

TASKS = 8
nodes = [name for name in sys.argv[1].split(",") if name]
context = SparkSession.builder.appName("locality").getOrCreate().sparkContext
jvm = context._jvm


def seq(items):
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq()


# As an RDD of HDFS: each part says where it is.
parts = seq([jvm.scala.Tuple2(i, seq(nodes)) for i in range(TASKS)])
made = context._jsc.sc().makeRDD(parts, jvm.scala.reflect.ClassTag.Any())
pickled = jvm.org.apache.spark.api.python.SerDeUtil.javaToPython(made.toJavaRDD())
numbers = RDD(pickled, context, AutoBatchedSerializer(CPickleSerializer()))
if sorted(numbers.map(lambda n: (time.sleep(1), n)[1]).collect()) != list(range(TASKS)):
    sys.exit("the numbers are wrong")
context.stop()
