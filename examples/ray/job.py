"""Thirty tasks of a second on as many workers as Ray asks for."""

import sys
import time

import ray


@ray.remote(num_cpus=1)
def square(n):
    time.sleep(1)
    return n * n


ray.init(address=sys.argv[1])
print("sum of squares:", sum(ray.get([square.remote(n) for n in range(30)])))
