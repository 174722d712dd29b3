"""Dask workers by posse. Needs `distributed`, which this module does not install.

- `PosseCluster`: a Dask cluster in this process, for scripts and notebooks.
- `dask scheduler --preload posse.dask`: a scheduler that posse started as its driver asks posse for as many workers as
  its work needs, between the group's `min` and `max`. $POSSE_DASK_GROUP names the group if there are several.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple, TypeVar, Union

from distributed import Scheduler, SchedulerPlugin, Security, Status
from distributed.core import rpc
from distributed.deploy import Adaptive
from distributed.deploy.cluster import Cluster
from distributed.utils import format_dashboard_link, silence_logging_cmgr
from tornado.ioloop import PeriodicCallback

from ._client import Client
from ._configuration import write_configuration
from ._http import Error
from ._run import Run, run

T = TypeVar("T")

# The name of what this module adds to a scheduler.
NAME = "posse"
TICK_MS = 1_000
# How many ticks in a row want fewer workers before some are ended.
TICKS_BEFORE_LOWER = 3
# Dask's web servers have neither TLS nor a password, and workers open one even without a dashboard.
WEB_HOST = "127.0.0.1"
WEB_PORT = 8787
# The variables by which Dask's workers find what TLS needs, and the files with it.
WORKER_TLS = {
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": ("ca_file", "ca.pem"),
    "DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT": ("cert", "cert.pem"),
    "DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY": ("key", "key.pem"),
}
# An executor in one of these states has a worker, or will have one.
LIVE = ("requested", "pending", "running")


async def _call(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Makes a call of the client, which blocks, in another thread."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*args, **named))


def _page(scheduler: Scheduler) -> Optional[str]:
    """The URL of Dask's dashboard, if there is one."""
    server = scheduler.services.get("dashboard") if scheduler.http_application.applications else None
    return server and format_dashboard_link(scheduler.address.split("://")[1].rsplit(":", 1)[0], server.port)


class _Reports(SchedulerPlugin):
    """Tells posse from which workers the scheduler hears, and which connections break."""

    def __init__(self, scheduler: Scheduler, client: Client) -> None:
        self._scheduler, self._client = scheduler, client
        self.ids: Dict[str, int] = {}  # by the worker's address
        self._heard_at = 0.0

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        # `--name $(POSSE_EXECUTOR_ID)`; a worker that somebody started by hand has another name.
        name = str(scheduler.workers[worker].name)
        if name.isdigit():
            self.ids[worker] = int(name)

    async def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        executor = self.ids.pop(worker, None)
        if executor is not None:
            try:
                await _call(self._client.disconnected, executor)
            except Error:
                pass  # It is ended already, and posse knows it.

    async def tell(self) -> None:
        workers = self._scheduler.workers.values()
        known = [one for one in workers if one.last_seen > self._heard_at and one.address in self.ids]
        memory = {self.ids[one.address]: int(one.metrics.get("memory", 0)) for one in known}
        self._heard_at = max((one.last_seen for one in workers), default=0.0)
        # Repeated, because posse may have been restarted.
        await _call(self._client.ready, _page(self._scheduler))
        await _call(self._client.heartbeat, list(memory), memory)


class _Scaler:
    """Grows and shrinks a group as its scheduler wants."""

    def __init__(self, scheduler: Scheduler, client: Client, reports: _Reports, group: str) -> None:
        self._scheduler, self._client, self._reports, self._group = scheduler, client, reports, group
        self._n_lower = 0
        self._last_error = ""

    async def tick(self) -> None:
        try:
            await self._reports.tell()
            await self._scale()
            self._last_error = ""
        except Error as error:
            # posse may be restarting, and the workers work on.
            if str(error) != self._last_error:
                print(f"posse: {error}", file=sys.stderr)
            self._last_error = str(error)

    async def _scale(self) -> None:
        workers = self._scheduler.workers
        if any(one.status is Status.closing_gracefully for one in workers.values()):
            return  # the scheduler still counts workers that are retiring
        group = (await _call(self._client.groups))[self._group]
        most = sys.maxsize if group.max is None else group.max
        wanted = max(group.min, min(most, self._scheduler.adaptive_target()))
        self._n_lower = self._n_lower + 1 if wanted < group.target else 0
        target = wanted if self._n_lower >= TICKS_BEFORE_LOWER else max(wanted, group.target)
        n_surplus = max(0, len(workers) - target)
        victims = self._scheduler.workers_to_close(n=n_surplus) if n_surplus else []
        if victims:
            # Copies results that only these workers hold; returns the workers for which this succeeded.
            retired = await self._scheduler.retire_workers(victims, remove=False)
            ids = [self._reports.ids[address] for address in retired if address in self._reports.ids]
            if ids:
                await _call(self._client.kill, ids, target=target, force=True, reason="retired")
                return
        if target != group.target:
            await _call(self._client.scale, target, self._group)


async def dask_setup(scheduler: Scheduler) -> None:
    """Called by `dask scheduler --preload posse.dask`."""
    try:
        client = Client(wait=10.0)
        names = list(await _call(client.groups))
    except Error as error:
        sys.exit(f"dask: {error}")
    group = os.environ.get("POSSE_DASK_GROUP") or (names[0] if len(names) == 1 else "")
    if group not in names:
        sys.exit(f"dask: set POSSE_DASK_GROUP to the group of the workers, one of: {', '.join(names)}")
    _start(scheduler, client, group)


def _start(scheduler: Scheduler, client: Client, group: str) -> None:
    reports = _Reports(scheduler, client)
    _add(scheduler, reports, _Scaler(scheduler, client, reports, group).tick)


def _add(scheduler: Scheduler, reports: _Reports, tick: Callable[[], Any]) -> None:
    scheduler.add_plugin(reports, name=NAME)
    scheduler.periodic_callbacks[NAME] = PeriodicCallback(tick, TICK_MS)


class _Adaptive(Adaptive):
    """Dask's own, except that posse ends the workers that the scheduler has retired."""

    async def recommendations(self, target: int) -> Dict[str, Any]:
        await self.cluster._refresh()
        answer: Dict[str, Any] = await super().recommendations(target)
        return answer

    async def scale_down(self, workers: Iterable[Any]) -> None:
        await self.cluster._end(workers)


def _secret(security: Security) -> Dict[str, Tuple[str, str]]:
    """What the workers' TLS needs, by its variables."""
    tls = security.get_tls_config_for_role("worker")
    secret = {}
    for variable, (field, file) in WORKER_TLS.items():
        value = tls[field]
        if value is None:
            raise ValueError(f"security lacks {field} for workers")
        # Dask has the contents or a path in one field.
        secret[variable] = file, value if "\n" in value else Path(value).read_text()
    return secret


class PosseCluster(Cluster):
    """A Dask cluster: the scheduler runs in this process, and posse keeps the workers running.

    `n_workers`: how many at first. `dev`: on this machine, without a cluster. `image`: the workers' image, with
    `distributed` in the version of this process. `command`: what a worker runs, as a list of words; by default
    `dask worker` with `nthreads` threads. `host`: the address on which the scheduler listens, with `dev` 127.0.0.1.
    `security`: Dask's keys for TLS, or True for keys of this cluster alone, which need the package `cryptography`;
    by default True, and with `dev` False. `options`: further options of `posse run`, for example
    `["--namespace", "jobs"]`.

        with PosseCluster(2, dev=True) as cluster, Client(cluster) as client:
            print(client.submit(sum, [1, 2, 3]).result())
    """

    def __init__(
        self,
        n_workers: int = 0,
        *,
        dev: bool = False,
        image: Optional[str] = None,
        command: Optional[Sequence[str]] = None,
        nthreads: int = 1,
        host: Optional[str] = None,
        security: Union[Security, bool, None] = None,
        options: Sequence[str] = (),
        asynchronous: bool = False,
        loop: Any = None,
        name: Optional[str] = None,
        **scheduler: Any,
    ) -> None:
        self._n_workers, self._dev, self._image, self._nthreads = n_workers, dev, image, nthreads
        self._command, self._options = command, options
        # Without a host Dask listens at all addresses.
        self._host = host or ("127.0.0.1" if dev else None)
        if security is None:
            # Whoever reaches a scheduler or a worker without TLS can run code there.
            security = not dev
        self.security = Security.temporary() if security is True else security or Security()
        self._has_tls = bool(security)
        web = f"{WEB_HOST}:{WEB_PORT}"
        self._scheduler_options = {"dashboard": False, "dashboard_address": web, **scheduler}
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._run: Optional[Run] = None
        self._quiet = ExitStack()
        self._ids: Set[str] = set()
        super().__init__(asynchronous=asynchronous, loop=loop, name=name)
        if not self.asynchronous:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException:
                self.close()
                raise

    def __await__(self) -> Any:
        async def start() -> PosseCluster:
            if self.status == Status.created:
                await self._start()
            return self

        return start().__await__()

    async def _start(self) -> None:
        # As Dask's own LocalCluster: that workers come and leave is no news.
        self._quiet.enter_context(silence_logging_cmgr(logging.WARNING))
        protocol = "tls://" if self._has_tls else "tcp://"
        self.scheduler = await Scheduler(
            host=self._host, port=0, protocol=protocol, security=self.security, **self._scheduler_options
        )
        self.scheduler_comm = rpc(self.scheduler.address, connection_args=self.security.get_connection_args("client"))
        await super()._start()
        command = self._worker(protocol, self.scheduler.port)
        arguments: Dict[str, Any] = {"dev": self._dev, "options": self._options}
        if self._has_tls:
            self._folder = tempfile.TemporaryDirectory(prefix="posse-dask-")
            group = {"count": self._n_workers, "command": command}
            if self._image is not None:
                group["image"] = self._image
            arguments["file"] = write_configuration(self._folder.name, "dask", _secret(self.security), group)
        else:
            arguments.update(executors=self._n_workers, command=command, image=self._image, app="dask")
        self._run = await _call(lambda: run(**arguments))
        reports = _Reports(self.scheduler, self._run.client)
        _add(self.scheduler, reports, reports.tell)
        self.scheduler.periodic_callbacks[NAME].start()
        await self._refresh()

    def _worker(self, protocol: str, port: int) -> List[str]:
        if self._command is not None:
            return [*self._command]
        dask = [sys.executable, "-m", "dask"] if self._dev else ["dask"]
        address = f"{protocol}$(POSSE_DRIVER_HOST):{port}"
        # With `dev` the pod's address is on loopback, too. Dask takes brackets around any address, and wants them for IPv6.
        where = ["--host", "[$(POSSE_POD_IP)]", "--no-dashboard", "--dashboard-address", f"{WEB_HOST}:0"]
        threads = ["--nthreads", str(self._nthreads)]
        # No nanny: posse starts the replacement, and knows the reason of the loss.
        return [*dask, "worker", address, "--name", "$(POSSE_EXECUTOR_ID)", "--no-nanny", *where, *threads]

    @property
    def client(self) -> Client:
        """The client of the run that has the workers."""
        if self._run is None:
            raise Error("the cluster is not started, or is closed")
        return self._run.client

    @property
    def plan(self) -> Set[str]:
        """The names of the workers that run or will run."""
        return self._ids

    @property
    def requested(self) -> Set[str]:
        """The same: posse has requested all that it wants."""
        return self._ids

    @property
    def observed(self) -> Set[str]:
        """The names of the workers that the scheduler has."""
        return {str(worker["name"]) for worker in self.scheduler_info["workers"].values()}

    async def _refresh(self) -> None:
        executors = (await _call(self.client.status)).executors
        self._ids = {str(id) for id, executor in executors.items() if executor.state in LIVE}

    def scale(self, n: int = 0, **_: Any) -> Any:
        """Sets how many workers there should be. Workers that end are retired first, so that no result is lost."""
        return self.sync(self._scale, n)

    async def _scale(self, n: int) -> None:
        await self._refresh()
        n_surplus = len(self._ids) - n
        if n_surplus <= 0:
            await _call(self.client.scale, n)
        else:
            victims: List[Any] = sorted(self._ids - self.observed, key=int, reverse=True)[:n_surplus]
            if n_left := n_surplus - len(victims):
                victims += await self.scheduler_comm.workers_to_close(n=n_left, attribute="name")
            await self._end(victims)
        await self._refresh()

    async def _end(self, workers: Iterable[Any]) -> None:
        """Retires these workers, then ends those for which that succeeded."""
        names = {str(worker) for worker in workers}
        present = {str(one["name"]): one["name"] for one in self.scheduler_info["workers"].values()}
        arrived = [present[name] for name in names if name in present]
        retired = await self.scheduler_comm.retire_workers(names=arrived, remove=False, close_workers=False)
        ended = {str(one["name"]) for one in retired.values()} | (names - set(present))
        if ended:
            ids = [int(name) for name in ended]
            await _call(self.client.kill, ids, replace=False, force=True, reason="retired")

    def adapt(self, Adaptive: Any = _Adaptive, **settings: Any) -> Any:
        """Lets Dask choose the number of workers: `minimum`, `maximum` and the other settings of Dask's Adaptive."""
        return super().adapt(Adaptive=Adaptive, **settings)

    async def _close(self) -> None:
        with self._quiet:
            await self._end_all()

    async def _end_all(self) -> None:
        if self.status == Status.closed:
            return
        scheduler: Optional[Scheduler] = getattr(self, "scheduler", None)
        if scheduler is not None:
            # First of all: a report to a posse that is gone would wait for it.
            scheduler.plugins.pop(NAME, None)
            if callback := scheduler.periodic_callbacks.pop(NAME, None):
                callback.stop()
        await super()._close()
        if self._run is not None:
            await _call(self._run.close)
            self._run = None
        if self._folder is not None:
            self._folder.cleanup()
        if scheduler is not None:
            await scheduler.close()
