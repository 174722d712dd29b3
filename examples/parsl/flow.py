"""200 apps in blocks of posse: 199 squares, then their sum. $LOG, if it is set: a file with a line for each
app that begins and ends."""

import os

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from posse.parsl import PosseProvider


@parsl.python_app
def square(n, path):
    import os
    import time

    def log(what):
        if path:
            with open(path, "a") as file:
                file.write(f"{what} {n} {os.environ['POSSE_KEY']} {os.getpid()}\n")

    log("begin")
    time.sleep(0.05)
    log("end")
    return n * n


@parsl.python_app
def total(*squares):
    return sum(squares)


htex = HighThroughputExecutor(
    address=os.environ["POSSE_DRIVER_HOST"],
    loopback_address="127.0.0.1",
    encrypted=True,  # Only who has the run's keys, which are in the shared folder, may talk to the driver.
    max_workers_per_node=2,
    heartbeat_period=2,
    heartbeat_threshold=10,
    provider=PosseProvider(init_blocks=2, max_blocks=2, status_polling_interval=1),
)
with parsl.load(Config(executors=[htex], retries=5, run_dir=os.environ.get("RUN_DIR", "runinfo"), usage_tracking=0)):
    squares = [square(n, os.environ.get("LOG")) for n in range(199)]
    print("sum", total(*squares).result())
