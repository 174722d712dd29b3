"""What the workers do. $LOG, if it is set: a file with a line for each call that begins and ends."""

import os
import time


def log(what, start):
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as file:
            file.write(f"{what} {start} {os.environ['POSSE_EXECUTOR_ID']} {time.time()}\n")


def primes(start, size):
    log("begin", start)
    n_primes = sum(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(start, start + size))
    log("end", start)
    return n_primes
