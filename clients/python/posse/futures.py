"""`concurrent.futures` by posse: calls of Python functions that run in executors.

    from posse.futures import PosseExecutor

    with PosseExecutor(4, dev=True) as executor:
        print(list(executor.map(pow, range(10), range(10))))

Workers live long and take one call after another. There are as many as there are calls, up to `max_workers`, and they
end when there is nothing to do. With the package `cloudpickle` functions of scripts and notebooks travel, too.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple
from typing import TypeVar

from ._channel import FRAME_BYTES_MAX, HELLO_BYTES_MAX, HELLO_SECONDS, Channel, ChannelError
from ._client import Client
from ._configuration import write_configuration
from ._http import Error, Refused, Unreachable
from ._run import Run, run
from ._types import Loss

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
T = TypeVar("T")

pickler: Any = pickle
try:
    import cloudpickle

    pickler = cloudpickle
except ImportError:
    pass

# The variable with the run's key in a worker, and the one with its file in a driver that posse started.
KEY_VARIABLE = "FUTURES_KEY"
KEY_FILE_VARIABLE = "FUTURES_KEY_FILE"
# What a worker's frame begins with: it is alive; what the call returned; what it raised.
BEAT, RETURNED, FAILED = b"B", b"R", b"F"
TICK_SECONDS = 0.5
# The most calls that wait or run, and the most workers: each has a thread here.
CALLS_MAX = 1_000_000
WORKERS_MAX = 1_000
# The most connections that have not shown yet that they know the key.
STRANGERS_MAX = 64
# The most workers that one call may lose, whatever the reason.
LOSSES_MAX = 100
# How long a call waits to learn why its worker is gone.
LOSS_SECONDS = 120.0
# Of how many workers the loss is remembered: some connect only after it.
LOSSES_KEPT = 10_000


class WorkerLost(BrokenExecutor):
    """The workers that made this call were lost, more often than `retries` allows. Other calls go on."""


class RemoteError(Exception):
    """Stands for an exception of a call that cannot be pickled."""


class RemoteTraceback(Exception):
    """The cause of an exception of a call: the words of its traceback in the worker."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Call:
    def __init__(self, payload: bytes) -> None:
        self.payload, self.future = payload, Future[Any]()
        self.n_losses = self.n_charged = 0


class _Worker:
    def __init__(self, id: int, channel: Channel) -> None:
        self.id, self.channel = id, channel
        self.call: Optional[_Call] = None
        # A retired one gets no more calls. `has_beaten`: since the last report to posse.
        self.is_retired, self.has_beaten = False, True


class PosseExecutor(Executor):
    """Runs calls in executors of posse.

    `max_workers`: the most workers; by default one for each processor of this machine. `dev`: on this machine, without
    a cluster. `image`: the workers' image, with Python in the version of this process and this package. `command`: what
    a worker runs instead of `python3 -m posse.worker ADDRESS`, which is added. `settings`: further keys of a group in
    posse.yaml, for example `{"cpu": "1", "memory": "2Gi"}`. `options`: further options of `posse run`.

    In a driver that `posse run` started, leave out `dev` and `image`. The workers are those of `group`, which may be left
    out if there is only one; docs/DRIVERS.md has the posse.yaml. `client`: by default `posse.Client()`.

    `retries`: how often a call is made again whose worker it has ended (a crash, too much memory). If the cluster ends
    a worker, its call is made again without a retry. Then the future's exception is `WorkerLost`. `min_workers`: how many
    stay without work. `idle_timeout`: for how many seconds a worker may have nothing to do.
    """

    def __init__(
        self,
        max_workers: Optional[int] = None,
        *,
        dev: bool = False,
        image: Optional[str] = None,
        command: Optional[Sequence[str]] = None,
        settings: Optional[Dict[str, Any]] = None,
        options: Sequence[str] = (),
        client: Optional[Client] = None,
        group: Optional[str] = None,
        min_workers: int = 0,
        idle_timeout: float = 10.0,
        retries: int = 2,
    ) -> None:
        self._changed = threading.Condition()  # and the lock of all that follows
        self._queue: Deque[_Call] = deque()
        self._n_open = 0  # calls that wait or run
        self._workers: Dict[int, _Worker] = {}
        self._idle: List[_Worker] = []  # the last one is the next to get a call, so that the first ones become surplus
        self._strangers: Dict[socket.socket, float] = {}  # since when
        self._accepted: SimpleQueue[Optional[socket.socket]] = SimpleQueue()  # none: the thread ends
        self._n_threads = self._n_connections = 0  # threads that serve workers, and what they have to serve
        self._lost: OrderedDict[int, Loss] = OrderedDict()
        self._awaited: Set[int] = set()  # workers whose loss a call waits for
        self._broken, self._is_shut, self._is_closed = "", False, False
        self._wake, self._has_ended = threading.Event(), threading.Event()
        self._pid, self._ends = os.getpid(), ExitStack()
        self._run: Optional[Run] = None
        self._retries, self._idle_timeout, self._min = retries, idle_timeout, min_workers
        try:
            if dev or image is not None:
                self.max_workers = max_workers or os.cpu_count() or 1
                self._check_numbers()
                self._begin_run(dev, image, command, settings or {}, options)
            else:
                self._join_run(client or Client(), group, max_workers)
                self._check_numbers()
            self._losses = self.client.losses()
            self._target = self.client.scale(self._min, self.group)
        except BaseException:
            self._ends.close()
            raise
        self._enough_at = time.monotonic()  # when there was last work for all workers
        # The manager is no daemon: Python waits for it at its end, and it for the calls.
        for what, is_daemon in [(self._accept, True), (self._manage, False)]:
            threading.Thread(target=what, name=f"posse{what.__name__}", daemon=is_daemon).start()

    def _check_numbers(self) -> None:
        if not 0 <= self._min <= self.max_workers <= WORKERS_MAX or self.max_workers < 1:
            raise ValueError(f"min_workers and max_workers must be 0 <= {self._min} <= {self.max_workers} <= {WORKERS_MAX}, and max_workers at least 1")
        if self._retries < 0 or self._idle_timeout < 0:
            raise ValueError("retries and idle_timeout must not be negative")

    def _listen(self, host: str, port: int) -> int:
        """Without a host at all addresses."""
        has_both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both or ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=WORKERS_MAX, dualstack_ipv6=has_both)
        # A thread that accepts wakes only by the first.
        self._ends.callback(self._listener.close)
        self._ends.callback(_shut, self._listener)
        return int(self._listener.getsockname()[1])

    def _begin_run(
        self, dev: bool, image: Optional[str], command: Optional[Sequence[str]], settings: Dict[str, Any], options: Sequence[str]
    ) -> None:
        key = secrets.token_hex(32)
        self._key = key.encode()
        port = self._listen("127.0.0.1" if dev else "", 0)
        words = [*(command or [sys.executable if dev else "python3", "-m", "posse.worker"]), f"$(POSSE_DRIVER_HOST):{port}"]
        whole = {"count": self._min, "min": self._min, "max": self.max_workers, "scale_down": "pending", "command": words, **settings}
        if image is not None:
            whole["image"] = image
        env = list(whole.pop("env", []))
        if dev:
            # As with `multiprocessing`: a worker finds the modules that this process finds.
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            env.append({"name": "PYTHONPATH", "value": paths.replace("$(", "$$(")})
        folder = self._ends.enter_context(tempfile.TemporaryDirectory(prefix="posse-futures-"))
        file = write_configuration(folder, "futures", {KEY_VARIABLE: ("key", key)}, whole, env)
        self._run = run(file=file, dev=dev, options=options)
        self._ends.callback(self._run.close)
        self.client, self.group = self._run.client, self._run.group

    def _join_run(self, client: Client, group: Optional[str], max_workers: Optional[int]) -> None:
        groups = client.groups()
        if group is None and len(groups) == 1:
            [group] = groups
        if group is None or group not in groups:
            raise ValueError(f"group must be one of: {', '.join(groups)}")
        found = groups[group]
        most = max_workers if found.max is None else min(max_workers or found.max, found.max)
        if most is None:
            raise ValueError(f"give max_workers: the group {group} has no `max`")
        self.client, self.group, self.max_workers, self._min = client, group, most, max(self._min, found.min)
        missing = [name for name in (KEY_FILE_VARIABLE, "POSSE_DRIVER_HOST", "POSSE_DRIVER_PORT") if not os.environ.get(name)]
        if missing:
            raise Error(f"{', '.join(missing)} is not set: give dev=True or image=..., or see `posse.futures` in docs/DRIVERS.md")
        try:
            self._key = Path(os.environ[KEY_FILE_VARIABLE]).read_bytes().strip()
        except OSError as error:
            raise Error(f"the key ({KEY_FILE_VARIABLE}) cannot be read: {error}") from error
        if len(self._key) < 16:
            raise Error(f"the key in {os.environ[KEY_FILE_VARIABLE]} is too short: it has less than 16 bytes")
        self._listen(os.environ["POSSE_DRIVER_HOST"].strip("[]"), int(os.environ["POSSE_DRIVER_PORT"]))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Makes a call in a worker. A call that cannot be pickled fails as its future's exception."""
        if os.getpid() != self._pid:
            raise RuntimeError("this process was forked from the executor's one: make an executor of its own")
        try:
            payload = pickler.dumps((fn, args, kwargs))
            if len(payload) > FRAME_BYTES_MAX:
                raise ValueError(f"the call has {len(payload)} bytes, more than {FRAME_BYTES_MAX}")
        except Exception as error:
            failed = Future[T]()
            failed.set_exception(error)
            return failed
        call = _Call(payload)
        with self._changed:
            if self._broken:
                raise BrokenExecutor(self._broken)
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._n_open >= CALLS_MAX:
                raise RuntimeError(f"{CALLS_MAX} calls wait or run: wait for some of them")
            self._n_open += 1
            self._queue.append(call)
            n_wanted = min(self._n_open, self.max_workers)
            if self._target < n_wanted:
                self._wake.set()
        self._start_threads(n_wanted)
        self._hand_out()
        return call.future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1, **more: Any
    ) -> Iterator[Any]:
        """As that of `Executor`. `chunksize`: how many items one call takes, for functions that take less than a few ms."""
        if chunksize < 1:
            raise ValueError("chunksize must be at least 1")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **more)
        items = zip(*iterables)
        chunks = iter(lambda: tuple(itertools.islice(items, chunksize)), ())
        return itertools.chain.from_iterable(super().map(partial(_call_each, fn), chunks, timeout=timeout, **more))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls, and ends the workers when all calls have ended. `cancel_futures`: those that wait do not begin."""
        with self._changed:
            self._is_shut = True
        if cancel_futures:
            self._give_up("the executor was shut down before the call could be made again")
        self._wake.set()
        if wait:
            self._has_ended.wait()

    # Calls and workers.

    def _hand_out(self) -> None:
        """Gives the calls that wait to workers without one."""
        pairs = []
        with self._changed:
            while self._queue and self._idle:
                call = self._queue.popleft()
                # One that lost its worker runs already.
                if call.n_losses or call.future.set_running_or_notify_cancel():
                    worker = self._idle.pop()
                    worker.call = call
                    pairs.append((worker, call))
                else:
                    self._n_open -= 1
        for worker, call in pairs:
            try:
                worker.channel.send(call.payload)
            except OSError:
                worker.channel.close()  # Its own thread sees to the call.

    def _start_threads(self, n_expected: int) -> None:
        """Starts the threads for the workers of this many calls, and for all connections. From 3.12 on Python starts no
        thread once its program has ended, so those for open calls are there before."""
        with self._changed:
            n = 0 if self._is_closed else max(n_expected, self._n_connections) + 1 - self._n_threads
            self._n_threads += max(n, 0)
        for i in range(n):
            try:
                threading.Thread(target=self._attend, name="posse_worker", daemon=True).start()
            except RuntimeError:
                with self._changed:
                    self._n_threads -= n - i
                return  # Those that there are take one connection after another.

    def _attend(self) -> None:
        try:
            while (stream := self._accepted.get()) is not None:
                try:
                    self._meet(stream)
                finally:
                    with self._changed:
                        self._n_connections -= 1
        finally:
            with self._changed:
                self._n_threads -= 1

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                time.sleep(0 if self._is_closed else TICK_SECONDS)  # There are too many open files.
                continue
            with self._changed:
                has_room = len(self._strangers) < STRANGERS_MAX
                if has_room:
                    self._strangers[stream] = time.monotonic()
                    self._n_connections += 1
            if has_room:
                self._accepted.put(stream)
                self._start_threads(0)
            else:
                stream.close()  # A worker tries again.

    def _meet(self, stream: socket.socket) -> None:
        """Serves a worker, or a stranger until it does not know the key."""
        worker = None
        try:
            channel = Channel(stream, self._key, is_driver=True)
            worker = self._admit(channel, channel.receive(HELLO_BYTES_MAX))
            channel.trust()
        except (OSError, ValueError, KeyError, TypeError):
            pass
        finally:
            with self._changed:
                del self._strangers[stream]
        if worker is None:
            stream.close()
            return
        self._hand_out()
        self._serve(worker)

    def _admit(self, channel: Channel, hello: bytes) -> Optional[_Worker]:
        said = json.loads(hello)
        id, version = int(said["executor"]), tuple(said["python"])
        if version != sys.version_info[:2]:
            theirs, ours = (".".join(map(str, one)) for one in (version, sys.version_info[:2]))
            self._break(f"the workers have Python {theirs}, and this process has {ours}: use an image with the same version")
            return None
        worker = _Worker(id, channel)
        with self._changed:
            if self._is_closed or id in self._lost or id in self._workers:
                return None
            self._workers[id] = worker
            self._idle.append(worker)
        return worker

    def _serve(self, worker: _Worker) -> None:
        try:
            while True:
                answer = worker.channel.receive()
                worker.has_beaten = True
                if answer == BEAT:
                    continue
                with self._changed:
                    call, worker.call = worker.call, None
                    if call is None:
                        raise ChannelError("a result of no call")
                    if not worker.is_retired:
                        self._idle.append(worker)
                self._hand_out()
                _settle(call, answer)
                self._has_settled()
        except OSError:
            pass
        with self._changed:
            del self._workers[worker.id]
            if worker in self._idle:
                self._idle.remove(worker)
            call, is_known = worker.call, worker.is_retired or self._is_closed
            if call is not None:
                self._awaited.add(worker.id)
        worker.channel.close()
        if not is_known:
            try:
                self.client.disconnected(worker.id)
            except Error:
                pass  # posse knows it already, or is away and will see it.
            self._wake.set()
        if call is not None:
            self._after_loss(worker.id, call)

    def _after_loss(self, id: int, call: _Call) -> None:
        """Makes a call again when posse has told why its worker is gone."""
        with self._changed:
            self._changed.wait_for(lambda: id in self._lost or self._broken, LOSS_SECONDS)
            self._awaited.discard(id)
            loss = self._lost.get(id) or Loss(id, "unknown", False)
            call.n_losses += 1
            # No worker ends with 0 in the middle of a call, but what it calls may end it so.
            call.n_charged += loss.caused_by_app or loss.reason == "completed"
            is_over = call.n_charged > self._retries or call.n_losses > LOSSES_MAX or self._broken
            if not is_over:
                self._queue.appendleft(call)
        if not is_over:
            self._hand_out()
            return
        if self._broken:
            call.future.set_exception(BrokenExecutor(self._broken))
        else:
            n = f"{call.n_losses} workers were" if call.n_losses > 1 else "a worker was"
            call.future.set_exception(WorkerLost(f"{n} lost with this call, the last one (executor {id}) as {loss.reason}"))
        self._has_settled()

    def _has_settled(self) -> None:
        with self._changed:
            self._n_open -= 1
            if self._is_shut and not self._n_open:
                self._wake.set()

    def _give_up(self, why: str) -> None:
        """Ends the calls that wait."""
        with self._changed:
            calls = [*self._queue]
            self._queue.clear()
        for call in calls:
            if not self._broken and call.future.cancel():
                call.future.set_running_or_notify_cancel()
            elif not call.future.cancelled():
                call.future.set_exception(BrokenExecutor(why))
            self._has_settled()

    def _break(self, why: str) -> None:
        with self._changed:
            self._broken = self._broken or why
            channels = [worker.channel for worker in self._workers.values()]
            self._changed.notify_all()
        for channel in channels:
            channel.close()
        self._give_up(self._broken)
        self._wake.set()

    # What posse is told, and tells.

    def _manage(self) -> None:
        last_error = ""
        try:
            while not self._is_over():
                try:
                    self._tick()
                    last_error = ""
                except Error as error:
                    if self._is_final(error):
                        self._break(str(error))
                    elif str(error) != last_error:
                        print(f"posse: {error}", file=sys.stderr)
                    last_error = str(error)
                self._wake.wait(TICK_SECONDS)
                self._wake.clear()
        except BaseException as error:
            self._break(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._close()

    def _is_over(self) -> bool:
        with self._changed:
            # At Python's end no more calls come, as with the executors of the standard library.
            self._is_shut |= not threading.main_thread().is_alive()
            return bool(self._broken) or self._is_shut and not self._n_open

    def _is_final(self, error: Error) -> bool:
        if isinstance(error, Refused):
            return error.status not in (429, 503)
        # Workers work on while posse is restarted. Without any, nothing goes on.
        return (self._run is not None and self._run.returncode is not None) or not self._workers

    def _tick(self) -> None:
        self._scale()
        with self._changed:
            known = [*self._workers, *self._awaited]
            late = [stream for stream, since in self._strangers.items() if time.monotonic() - since > HELLO_SECONDS]
        for stream in late:
            _shut(stream)
        for loss in self._losses.take(known):
            self._learn(loss)
        self.client.ready()  # repeated, because posse may have been restarted
        with self._changed:
            beaten = [worker for worker in self._workers.values() if worker.has_beaten]
            idle = [worker.id for worker in self._idle]
            for worker in beaten:
                worker.has_beaten = False
        self.client.heartbeat(worker.id for worker in beaten)
        self.client.idle(idle)

    def _learn(self, loss: Loss) -> None:
        """Gives a worker no more calls. A call that it makes goes on until the connection breaks: so it never runs twice at once."""
        with self._changed:
            self._lost[loss.executor] = loss
            if len(self._lost) > LOSSES_KEPT:
                self._lost.popitem(last=False)
            worker = self._workers.get(loss.executor)
            if worker is not None:
                self._retire(worker)
            self._changed.notify_all()
        if worker is not None and worker.call is None:
            worker.channel.close()

    def _retire(self, worker: _Worker) -> None:
        worker.is_retired = True
        if worker in self._idle:
            self._idle.remove(worker)

    def _scale(self) -> None:
        """As many workers as there are calls. Fewer only when some had nothing to do for a while."""
        with self._changed:
            now = time.monotonic()
            wanted = max(self._min, min(self.max_workers, self._n_open))
            if wanted >= self._target:
                self._enough_at = now
            elif now - self._enough_at < self._idle_timeout:
                wanted = self._target
            n_workers = sum(not worker.is_retired for worker in self._workers.values())
            victims = self._idle[: max(0, n_workers - wanted)]
            for worker in victims:
                self._retire(worker)
            target = max(wanted, n_workers - len(victims))
        if victims:
            self.client.kill([worker.id for worker in victims], target=target, force=True, reason="idle")
            self._target = target
        else:
            # Repeated, because posse may have been restarted.
            self._target = self.client.scale(target, self.group)

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            workers, n_threads = [*self._workers.values()], self._n_threads
        if self._run is None and not self._broken:
            # The group stays. posse has to know first: it would replace workers that end by themselves.
            try:
                self.client.kill([worker.id for worker in workers], target=self._min, force=True, reason="shut down")
            except Error as error:
                print(f"posse: {error}", file=sys.stderr)
        self._ends.close()
        for worker in workers:
            worker.channel.close()
        for _ in range(n_threads):
            self._accepted.put(None)
        self._has_ended.set()


def _settle(call: _Call, answer: bytes) -> None:
    """Gives a future its result or its exception. The answer is of a worker that knows the key."""
    try:
        kind, value = answer[:1], pickle.loads(memoryview(answer)[1:])
        if kind == RETURNED:
            call.future.set_result(value)
            return
        error, words = value
        error.__cause__ = RemoteTraceback(words)
    except Exception as unreadable:
        error = unreadable
    call.future.set_exception(error)


def _call_each(function: Callable[..., Any], items: Sequence[Tuple[Any, ...]]) -> List[Any]:
    return [function(*item) for item in items]


def _shut(stream: socket.socket) -> None:
    try:
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended already.
