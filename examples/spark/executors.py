"""Functions of the recipes: list Spark's executors, wait for them, kill one."""

import os
import signal
import sys
import time

DEADLINE_SECONDS = 150


def registered(spark):
    """The ids of the executors that Spark has registered, without the driver."""
    infos = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    ids = [infos.apply(i).id() for i in range(infos.size())]
    return sorted(int(number) for number in ids if number != "driver")


def wait_until(spark, what, done):
    until = time.monotonic() + DEADLINE_SECONDS
    while not done():
        if time.monotonic() > until:
            sys.exit(f"not within {DEADLINE_SECONDS} s: {what}; executors: {registered(spark)}")
        time.sleep(0.05)


def kill(spark, executor):
    """Kills the executor's process with -9. Finds the process by its environment."""
    wanted = {f"SPARK_EXECUTOR_ID={executor}", f"SPARK_APPLICATION_ID={spark.sparkContext.applicationId}"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
                environ = set(file.read().split("\0"))
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                is_backend = "KubernetesExecutorBackend" in file.read()
        except OSError:
            continue
        if is_backend and wanted <= environ:
            os.kill(int(pid), signal.SIGKILL)
            return
    sys.exit(f"no process of executor {executor}")
