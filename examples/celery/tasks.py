"""The tasks, and where a worker keeps those that it holds."""
import os
import time

from celery import Celery


def held_by(executor):
    """Redis' keys for what this worker holds."""
    return {f"unacked{part}_key": f"unacked{part}-{executor}" for part in ("", "_index", "_mutex")}


broker = os.environ["BROKER"]
app = Celery("tasks", broker=broker, backend=broker)
app.conf.update(
    # A task is done when it has ended, not when a worker has it.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # No time gives a task to another worker: the driver does, if posse says that its worker is lost.
    broker_transport_options={"visibility_timeout": 366 * 24 * 3600, **held_by(os.environ.get("POSSE_EXECUTOR_ID", ""))},
    broker_connection_retry_on_startup=True,
)


@app.task
def square(n):
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as file:
            print(n, os.environ["POSSE_EXECUTOR_ID"], file=file)
    time.sleep(0.3)
    return n * n, os.environ["POSSE_EXECUTOR_ID"]
