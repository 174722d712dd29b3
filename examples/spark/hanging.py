"""Each task stops the executor in which it runs, as a process that hangs: Spark hears nothing from it any more."""

import os
import signal
import time

from pyspark.sql import SparkSession


def stop(_):
    pid = os.getpid()
    while "KubernetesExecutorBackend" not in open(f"/proc/{pid}/cmdline", encoding="latin-1").read():
        with open(f"/proc/{pid}/stat", encoding="latin-1") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGSTOP)
    while True:
        time.sleep(1)


spark = SparkSession.builder.appName("hanging").getOrCreate()
spark.sparkContext.parallelize(range(2), 2).foreach(stop)
