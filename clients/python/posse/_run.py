"""Runs of posse that belong to this Python process, for scripts and notebooks."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from types import TracebackType
from typing import IO, Any, List, Mapping, MutableSet, Optional, Sequence, Type, Union

from ._client import Client
from ._http import Error, Unreachable

# How long posse may take until it serves its control API.
START_SECONDS = 60.0
# posse ends its executors first: see `shutdown` in its configuration.
STOP_SECONDS = 120.0
# How much of posse's messages an error shows, in bytes.
SAID_BYTES_MAX = 4_000
# Lives as long as this process holds the pipe open, so it also ends after a `kill -9`; then posse ends the run.
# The first read ends it if this process was gone before: select waits only for writers that it has seen.
_DRIVER = """
import os, select, sys
pipe = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
try:
    os.read(pipe, 1)
except BlockingIOError:
    select.select([pipe], [], [])
"""


def find_posse() -> str:
    """The path of the posse program: $POSSE_EXE, the one that was installed with this module, or one on PATH."""
    beside = os.path.join(sysconfig.get_path("scripts"), "posse")
    for path in (os.environ.get("POSSE_EXE"), beside, shutil.which("posse")):
        if path and os.access(path, os.X_OK):
            return path
    raise Error("there is no posse program: install the wheel of your platform, or set POSSE_EXE to its path")


class Run:
    """A run of posse, which ends with this process. `client` makes its calls. Use it with `with`, or call `close`.

    A process that was forked from this one can use `client`, but the run stays this one's.
    """

    def __init__(self, arguments: Sequence[str], env: Optional[Mapping[str, str]] = None, posse: Optional[str] = None) -> None:
        program = posse or find_posse()
        self._owner, self._hold = os.getpid(), -1
        self._ends = contextlib.ExitStack()  # what `close` does, also after a start that failed half-way
        atexit.register(self.close)
        try:
            self._start(program, arguments, env)
            self._wait_until_served()
        except OSError as error:
            self.close()
            raise Error(f"posse cannot be started: {error}") from error
        except BaseException:
            self.close()
            raise
        self.client = Client(self.address)
        self.client._why_gone = self._why_gone

    def _start(self, program: str, arguments: Sequence[str], env: Optional[Mapping[str, str]]) -> None:
        folder = tempfile.mkdtemp(prefix="posse-")
        self._ends.callback(shutil.rmtree, folder, ignore_errors=True)
        fifo = os.path.join(folder, "driver")
        os.mkfifo(fifo, 0o600)
        self.address = "unix:" + os.path.join(folder, "control")
        self.client = Client(self.address, wait=0.0)
        self._log: IO[bytes] = self._ends.enter_context(open(os.path.join(folder, "log"), "w+b"))
        # Opened for both directions, so that the open itself waits for nobody.
        self._hold = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
        self._ends.callback(self._let_go)
        _RUNS.add(self)
        # In a group of its own: a Ctrl-C in a notebook is for the cell, not for the executors.
        self._process = subprocess.Popen(
            [program, "run", "--control", self.address, *arguments, "--", sys.executable, "-c", _DRIVER, fifo],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ends.callback(self._stop)

    def _wait_until_served(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            if why := self._why_gone():
                raise Error(why)
            try:
                self.client.wait_ready()
                return
            except Error:
                if time.monotonic() > until:
                    raise Unreachable(f"posse did not begin within {START_SECONDS:g} s:\n{self.messages()}") from None
            time.sleep(0.05)

    def _why_gone(self) -> Optional[str]:
        if self.returncode is None:
            return None
        said = self.messages()
        return f"posse has ended with exit code {self.returncode}" + (said and f":\n{said}")

    def __repr__(self) -> str:
        state = "runs" if self.returncode is None else f"ended with {self.returncode}"
        return f"<posse.Run {self.address} {state}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """posse's process id."""
        return self._process.pid

    @property
    def group(self) -> str:
        """The name of the only group; raises ValueError if there are several."""
        [name] = self.client.groups()
        return name

    @property
    def returncode(self) -> Optional[int]:
        """posse's exit code; None while it runs, and in a forked process, which cannot know it."""
        return self._process.poll() if os.getpid() == self._owner else None

    def messages(self) -> str:
        """The last lines that posse and its executors have written."""
        try:
            size = os.fstat(self._log.fileno()).st_size
            text = os.pread(self._log.fileno(), SAID_BYTES_MAX, max(0, size - SAID_BYTES_MAX))
        except (OSError, ValueError):
            return ""
        return text.decode("utf-8", "replace")

    def scale(self, target: int, group: Optional[str] = None) -> int:
        """Sets how many executors a group should have. Returns the number in force."""
        return self.client.scale(target, group)

    def close(self) -> None:
        """Ends the executors and posse. Does nothing if that was done already, and in a forked process."""
        atexit.unregister(self.close)
        if os.getpid() == self._owner:
            self._ends.close()

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _let_go(self) -> None:
        if self._hold >= 0:
            os.close(self._hold)
        self._hold = -1


_RUNS: MutableSet[Run] = weakref.WeakSet()
# Options that say what an executor runs, each alone or with its value.
_NAMING = ("-f", "--config", "--file", "--template", "--image", "--command")


def _let_go_of_all() -> None:
    for run in list(_RUNS):
        run._let_go()


# A forked child has the pipe too: it must not hold the run when its parent is gone.
os.register_at_fork(after_in_child=_let_go_of_all)


def run(
    *,
    executors: Optional[int] = None,
    command: Union[str, Sequence[str], None] = None,
    image: Optional[str] = None,
    file: Union[str, os.PathLike[str], None] = None,
    app: Optional[str] = None,
    namespace: Optional[str] = None,
    dev: bool = False,
    options: Sequence[str] = (),
    env: Optional[Mapping[str, str]] = None,
) -> Run:
    """Starts a run without a driver of its own: this process is the driver.

    `executors`: how many. `command`: what each of them runs, as a list of words or as one line. `image`: their
    image. `dev`: on this machine, without a cluster and without images. `file`: a posse.yaml instead, whose `driver`
    is left out. `options`: further options of `posse run`. `env`: variables for posse and, with `dev`, its executors.

    Returns when posse has listed what exists already; `client.wait_running(n)` waits for executors. When this
    process ends, also by `kill -9`, posse ends the executors and then itself. Raises `Error` if nothing says what an
    executor runs, and with posse's own words if it cannot begin.
    """
    named = [command, image, file, *(True for option in options if option.startswith(_NAMING))]
    if all(given is None for given in named) and not os.path.exists("posse.yaml"):
        raise Error(
            "posse.run() does not know what an executor runs: give command=[...] with dev=True, image=..., or file=..., "
            "or write a posse.yaml into this folder"
        )
    words: List[str] = []
    settings: List[Any] = [
        ("--executors", executors),
        ("--command", command if command is None or isinstance(command, str) else shlex.join(command)),
        ("--image", image),
        ("-f", file),
        ("--app", app),
        ("--namespace", namespace),
    ]
    for flag, value in settings:
        if value is not None:
            words += [flag, os.fspath(value) if flag == "-f" else str(value)]
    if dev:
        words.append("--dev")
    return Run([*words, *options], env)
