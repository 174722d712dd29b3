"""Parsl by posse: the blocks of a HighThroughputExecutor are tasks of a run. Needs `parsl`, which this module does not install.

    HighThroughputExecutor(address=..., provider=PosseProvider(max_blocks=4))

docs/TASKS.md says what a task is. The run is found by $POSSE_CONTROL, which posse sets for its driver.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Dict, List, Mapping, Optional, Sequence

from parsl.errors import ParslError
from parsl.jobs.states import JobState, JobStatus
from parsl.providers.base import ExecutionProvider
from parsl.utils import RepresentationMixin

from ._client import Client
from ._http import Error, Unreachable
from ._types import Task

# How Parsl calls the states of a task.
STATES = {
    "held": JobState.PENDING,
    "waiting": JobState.PENDING,
    "pending": JobState.PENDING,
    "running": JobState.RUNNING,
    "succeeded": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
    "skipped": JobState.FAILED,
}
# Of the 63 characters of a key, what a block's name may take.
NAME_CHARS = 48


class PosseProvider(ExecutionProvider, RepresentationMixin):
    """Gives Parsl's blocks to posse. One block is one task, with one pod.

    `control`: the run's control address, by default $POSSE_CONTROL. `group`: the group of the tasks, which may be left out
    if there is only one. `image`, `cpu`, `memory`, `node_selector`, `deadline`: as for a task; what is left out
    comes from the group's template. `retries`: how often a block is started again that has failed; one that the cluster ends
    costs none. `worker_init`: a line of shell that runs before Parsl's worker. The others are those of every provider of Parsl.
    """

    def __init__(
        self,
        control: Optional[str] = None,
        group: Optional[str] = None,
        image: Optional[str] = None,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        node_selector: Optional[Mapping[str, str]] = None,
        deadline: Optional[str] = None,
        retries: int = 2,
        worker_init: str = "",
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        parallelism: float = 1.0,
        status_polling_interval: int = 5,
    ) -> None:
        self.control, self.group, self.image, self.retries, self.worker_init = control, group, image, retries, worker_init
        self.cpu, self.memory, self.node_selector, self.deadline = cpu, memory, node_selector, deadline
        self.init_blocks, self.min_blocks, self.max_blocks, self.parallelism = init_blocks, min_blocks, max_blocks, parallelism
        self._interval = status_polling_interval
        self.nodes_per_block, self.cores_per_node, self.mem_per_node = 1, None, None
        self.script_dir: Optional[str] = None
        # Parsl's word for jobs.
        self.resources: Dict[object, Any] = {}
        self._shape = {
            "image": image, "cpu": cpu, "memory": memory, "node_selector": node_selector, "deadline": deadline
        }
        self._tasks = Client(control).executors

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl.auto") -> object:
        """Adds a task that runs the command. Returns its key."""
        if tasks_per_node != 1:
            raise ParslError(f"posse starts one worker pool in a pod, and not {tasks_per_node}: give more blocks")
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", job_name).strip("-_.")[:NAME_CHARS] or "block"
        words = f"{self.worker_init}\n{command}" if self.worker_init else command
        shape = {field: value for field, value in self._shape.items() if value is not None}
        task = {"key": f"{name}-{secrets.token_hex(4)}", "command": ["sh", "-c", words], "retries": self.retries, **shape}
        try:
            self._tasks.submit_all([task], group=self.group)
        except Error as error:
            raise ParslError(f"posse: {error}") from error
        self.resources[task["key"]] = task
        return task["key"]

    def status(self, job_ids: Sequence[object]) -> Sequence[JobStatus]:
        """The states of these blocks. While posse is away they are unknown, which ends none."""
        try:
            known = {task.key: task for task in self._tasks.list(group=self.group)}
            forgotten = [self.resources[key] for key in job_ids if key not in known and key in self.resources]
            if forgotten:
                # posse was killed and started again, and these had no pod yet: so they do not run twice.
                known.update({task.key: task for task in self._tasks.submit_all(forgotten, group=self.group)})
        except Unreachable as error:
            return [JobStatus(JobState.UNKNOWN, message=str(error)) for _ in job_ids]
        except Error as error:
            raise ParslError(f"posse: {error}") from error
        return [_status(known.get(str(key))) for key in job_ids]

    def cancel(self, job_ids: Sequence[object]) -> Sequence[bool]:
        """Ends these blocks. True for those that posse has ended, or did not know any more."""
        return [self._cancel(str(key)) for key in job_ids]

    def _cancel(self, key: str) -> bool:
        self.resources.pop(key, None)
        try:
            return self._tasks.cancel(key, group=self.group).has_ended
        except Error as error:
            return getattr(error, "status", None) == 404

    @property
    def label(self) -> str:
        """The provider's name in Parsl's messages."""
        return "posse"

    @property
    def status_polling_interval(self) -> int:
        """How many seconds Parsl waits between two looks at its blocks."""
        return self._interval


def _status(task: Optional[Task]) -> JobStatus:
    if task is None:
        return JobStatus(JobState.MISSING, message="posse does not know this task any more")
    # Parsl ends a program after several blocks that have failed, but not after such that had no more time.
    state = JobState.TIMEOUT if task.reason == "deadline_exceeded" else STATES.get(task.state, JobState.UNKNOWN)
    message: List[str] = [part for part in (task.reason, task.message) if part]
    return JobStatus(state, message=": ".join(message) or None, exit_code=task.exit_code)
