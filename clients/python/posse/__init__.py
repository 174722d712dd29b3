"""posse keeps a driver's executors alive on Kubernetes. This is its client for Python programs.

`Client` makes the calls of a run's control API; a driver that posse started needs no arguments:

    client = posse.Client()
    client.scale(4)

`run` starts executors that belong to this process:

    with posse.run(dev=True, executors=2, command="sleep 600") as run:
        run.client.wait_running(2)

The module needs only the standard library, Python 3.9 or newer.
"""

from importlib.metadata import PackageNotFoundError, version

from ._client import Client, Executors, Losses
from ._http import Error, Refused, Unreachable
from ._run import Run, find_posse, run
from ._types import Event, Executor, Group, Killed, Loss, Status, Task

try:
    __version__ = version("posse")
except PackageNotFoundError:  # not installed: this is a folder of sources
    __version__ = "0"

__all__ = [
    "Client",
    "Error",
    "Event",
    "Executor",
    "Executors",
    "Group",
    "Killed",
    "Loss",
    "Losses",
    "Refused",
    "Run",
    "Status",
    "Task",
    "Unreachable",
    "find_posse",
    "run",
]
