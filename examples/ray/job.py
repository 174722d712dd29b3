"""Thirty tasks of a second on as many workers as Ray asks for. $LOG, if it is set: a file with a line for each task that begins."""

import os
import sys
import time

import ray

LOG = os.environ.get("LOG")


@ray.remote(num_cpus=1)
def square(n):
    if LOG:
        with open(LOG, "a") as log:
            print(n, os.environ["POSSE_EXECUTOR_ID"], file=log)
    time.sleep(1)
    return n * n


ray.init(address=sys.argv[1])
print("sum of squares:", sum(ray.get([square.remote(n) for n in range(30)])))
