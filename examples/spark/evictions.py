"""Evicts working executors, COUNT times in all. No task attempt may count as failed.

Run with spark.task.maxFailures=1: the first attempt that counts fails the job.
"""

import os
import sys
import threading
import time

from pyspark.sql import SparkSession

import kube
import observe

DEADLINE_SECONDS = 1500
# Five executors that end within a minute of their start count as a crash loop.
YOUNG_MAX = 4
YOUNG_SECONDS = 62


def evict(name):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    observe.API.call("POST", f"{kube.PODS}/{name}/eviction", body)


def busy():
    """The executors that run a task."""
    infos = context._jsc.sc().statusStore().executorList(True)
    infos = [infos.apply(i) for i in range(infos.size())]
    return {info.id() for info in infos if info.activeTasks() > 0}


count = int(sys.argv[1])
spark = SparkSession.builder.appName("evictions").getOrCreate()
context = spark.sparkContext
flag = sys.argv[2]
open(flag, "w", encoding="utf-8").close()


def task(n):
    """A task that runs until the evictions are over."""
    while os.path.exists(flag):
        time.sleep(0.2)
    return n


results = []
job = threading.Thread(target=lambda: results.append(context.parallelize(range(8), 8).map(task).sum()))
job.start()
evicted, times = set(), []
until = time.monotonic() + DEADLINE_SECONDS
while len(evicted) < count and job.is_alive() and time.monotonic() < until:
    at_work = busy()
    for pod in observe.executors():
        labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
        recent = [at for at in times if time.monotonic() - at < YOUNG_SECONDS]
        if labels["spark-exec-id"] in at_work and name not in evicted and len(evicted) < count and len(recent) < YOUNG_MAX:
            evict(name)
            evicted.add(name)
            times.append(time.monotonic())
    time.sleep(0.2)
os.unlink(flag)
job.join(120)
if len(evicted) != count or results != [28]:
    sys.exit(f"{len(evicted)} evictions, then {results}")
print(f"{count} evictions, no task attempt spent, the result is right", flush=True)
spark.stop()
