"""The tasks, and how Celery gets the task of a lost worker to another one."""
import os
import time

from celery import Celery

broker = os.environ["BROKER"]
app = Celery("tasks", broker=broker, backend=broker)
app.conf.update(
    # A task is done when it has ended, not when a worker has it.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # Longer than any task takes.
    broker_transport_options={"visibility_timeout": 5},
    broker_connection_retry_on_startup=True,
)


@app.task
def square(n):
    time.sleep(0.3)
    return n * n, os.environ["POSSE_EXECUTOR_ID"]
