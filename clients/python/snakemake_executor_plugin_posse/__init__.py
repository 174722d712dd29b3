"""Snakemake's executor plugin for posse: each job is a task of a run (docs/TASKS.md).

    posse run --executors 0 --image IMAGE -- snakemake --executor posse --jobs 100

Snakemake finds the plugin by its name, and the run by $POSSE_CONTROL, which posse sets for its driver. Snakemake and the
tasks share a folder, or use one of Snakemake's storage plugins.
"""

import asyncio
import hashlib
import re
import secrets
import shlex
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Dict, List, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args

from posse import Client, Error, Refused, Task

# Of the 63 characters of a key, what the name of a rule may take. What tells the job from others, and a random part follow.
NAME_CHARS, IDENTITY_CHARS = 36, 12

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=True,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # Declared variables are those of the group's template: a value in a task could be read by whoever reads pods.
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=True,
    init_seconds_before_status_checks=1,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """What `--posse-...` says. Snakemake reads the types themselves, so this module does not postpone them."""

    control: Optional[str] = field(
        default=None, metadata={"help": "The run's control address: unix:PATH or a loopback HOST:PORT. Default: $POSSE_CONTROL"}
    )
    group: Optional[str] = field(default=None, metadata={"help": "The group of the tasks; not needed if there is only one"})
    retries: int = field(
        default=0, metadata={"help": "How often posse runs a job again that has failed. Jobs that the cluster ends cost none"}
    )


class Executor(RemoteExecutor):
    """Gives jobs to posse, and asks for all of them at once."""

    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        self._group, self._retries = settings.group, settings.retries
        self._last_error = ""
        try:
            client = Client(settings.control)
            groups = client.groups()
            if self._group not in groups if self._group else len(groups) != 1:
                raise WorkflowError(f"posse: --posse-group must be one of: {', '.join(groups)}")
            self._tasks = client.executors
            tasks = self._tasks.list(group=self._group)
        except Error as error:
            raise WorkflowError(f"posse: {error}") from error
        # Those of an earlier Snakemake, by their keys without the random part.
        self._earlier = {task.key.rpartition("-")[0]: task.key for task in tasks if not task.has_ended}

    def run_job(self, job: JobExecutorInterface) -> None:
        """Adds the job as a task, or finds the task of an earlier Snakemake that was killed."""
        info = SubmittedJobInfo(job, aux={})
        targets = " ".join(encode_target_jobs_cli_args(job.get_target_spec()))
        stem = self._stem(job, targets)
        try:
            earlier = self._find_earlier(stem)
            task = self._task(job, earlier or f"{stem}-{secrets.token_hex(4)}")
            if earlier:
                self.logger.info(f"{targets} is the task {earlier} already")
            else:
                self._tasks.submit_all([task], group=self._group)
            info.aux["task"], info.external_jobid = task, task["key"]
        except Error as error:
            self.report_job_error(info, msg=f"posse: {error}\n")
            return
        self.report_job_submission(info)

    def _stem(self, job: JobExecutorInterface, targets: str) -> str:
        """The same in each Snakemake that runs this workflow in this folder."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(job.name)).strip("-_.")[:NAME_CHARS] or "job"
        words = "\n".join([str(self.workflow.workdir_init), str(self.workflow.main_snakefile), targets])
        return f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:IDENTITY_CHARS]}"

    def _find_earlier(self, stem: str) -> Optional[str]:
        """The job's open task. Snakemake's own record of it is gone as soon as the Snakemake in the task has begun."""
        key = self._earlier.pop(stem, None)
        if key is None:
            return None
        try:
            return None if self._tasks.get(key, group=self._group).has_ended else key
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    def _task(self, job: JobExecutorInterface, key: str) -> Dict[str, Any]:
        resources = job.resources
        task: Dict[str, Any] = {
            "key": key,
            "command": ["sh", "-c", self.format_job_exec(job)],
            "cpu": str(job.threads),
            "retries": self._retries,
        }
        if memory := resources.get("mem_mb"):
            # Snakemake's MB are those of 1,000,000 bytes.
            task["memory"] = f"{int(memory)}M"
        if minutes := resources.get("runtime"):
            task["deadline"] = f"{int(minutes)}m"
        if gpus := resources.get("nvidia_gpu"):
            task["resources"] = {"nvidia.com/gpu": str(gpus)}
        if image := resources.get("posse_image"):
            task["image"] = str(image)
        return task

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        """The folder of the workflow, if the tasks have it, too."""
        is_shared = self.workflow.storage_settings.assume_common_workdir
        return f"cd {shlex.quote(str(self.workflow.workdir_init))}" if is_shared else ""

    async def check_active_jobs(self, active_jobs: List[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Reports jobs that have ended, and yields the others."""
        try:
            async with self.status_rate_limiter:
                tasks = await asyncio.to_thread(self._tasks.list, group=self._group)
                known = {task.key: task for task in tasks}
                forgotten = [job.aux["task"] for job in active_jobs if job.external_jobid not in known and job.aux.get("task")]
                if forgotten:
                    # posse was killed and started again, and these had no pod yet: so they do not run twice.
                    added = await asyncio.to_thread(self._tasks.submit_all, forgotten, group=self._group)
                    known.update({task.key: task for task in added})
            self._last_error = ""
        except Error as error:
            # It may be restarting. The tasks run on.
            if str(error) != self._last_error:
                self.logger.warning(f"posse: {error}")
            self._last_error = str(error)
            for job in active_jobs:
                yield job
            return
        for job in active_jobs:
            task = known.get(job.external_jobid)
            if task is not None and not task.has_ended:
                yield job
            elif task is not None and task.state == "succeeded":
                self.report_job_success(job)
            else:
                self.report_job_error(job, msg=_why(job.external_jobid, task))

    def cancel_jobs(self, active_jobs: List[SubmittedJobInfo]) -> None:
        """Ends the tasks of these jobs."""
        for job in active_jobs:
            try:
                self._tasks.cancel(job.external_jobid, group=self._group)
            except Error as error:
                self.logger.warning(f"posse: {error}")


def _why(key: str, task: Optional[Task]) -> str:
    if task is None:
        return f"posse does not know the task {key} any more. "
    code = "" if task.exit_code is None else f", exit code {task.exit_code}"
    said = f": {task.message}" if task.message else ""
    return f"The task {key} has {task.state} ({task.reason}{code}){said}. `posse task logs {key}` shows its output. "
