"""A worker of `posse.futures`: takes calls from its driver, one after another.

    python3 -m posse.worker "$(POSSE_DRIVER_HOST):PORT"

$POSSE_EXECUTOR_ID is its id, and $FUTURES_KEY the run's key. What it prints is the pod's output.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from ._channel import FRAME_BYTES_MAX, Channel
from .futures import BEAT, FAILED, KEY_VARIABLE, RETURNED, RemoteError, pickler

BEAT_SECONDS = 2.0
# How long the driver may be out of reach at the start.
DRIVER_SECONDS = 60.0


class Worker:
    """Receives in a thread of its own, so that it ends with its driver also in the middle of a call."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_busy = self._is_ending = False

    def work(self) -> None:
        # As process 1 of a container Python would ignore TERM. A call that runs may use the grace period.
        signal.signal(signal.SIGTERM, self._end)
        for thread in (self._receive, self._beat):
            threading.Thread(target=thread, daemon=True).start()
        while not self._is_ending:
            call = self._calls.get()
            self._is_busy = True
            self._channel.send(outcome(call))
            self._is_busy = False

    def _end(self, *_: Any) -> None:
        self._is_ending = True
        if not self._is_busy:
            os._exit(0)

    def _receive(self) -> None:
        try:
            while True:
                self._calls.put(self._channel.receive())
        except OSError as error:
            leave(f"the driver is gone: {error}")

    def _beat(self) -> None:
        try:
            while True:
                time.sleep(BEAT_SECONDS)
                self._channel.send(BEAT)
        except OSError as error:
            leave(f"the driver is gone: {error}")


def leave(why: str) -> None:
    print(f"posse.worker: {why}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(0)


def outcome(call: bytes) -> bytes:
    """Makes a call. Returns its result, or its exception and the words of the traceback."""
    raised: bytes
    try:
        function, args, named = pickle.loads(call)
        returned: bytes = RETURNED + pickler.dumps(function(*args, **named))
        if len(returned) > FRAME_BYTES_MAX:
            raise ValueError(f"the result has {len(returned)} bytes, more than {FRAME_BYTES_MAX}: leave it on a volume")
        return returned
    except BaseException as error:  # also SystemExit: it ends the call, and not the worker
        words = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            raised = pickler.dumps((error, words))
            # Some exceptions can be written, but not read: their constructors take other arguments.
            pickle.loads(raised)
        except Exception:
            raised = pickle.dumps((RemoteError(f"{type(error).__name__}: {error}"), words))
        return FAILED + raised


def connect(address: str, key: bytes) -> Channel:
    host, _, port = address.rpartition(":")
    until = time.monotonic() + DRIVER_SECONDS
    while True:
        try:
            stream = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
            return Channel(stream, key, is_driver=False)
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"posse.worker: no driver at {address}: {error}")
        time.sleep(0.5)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        # Taken away, so that the programs that a call starts do not have it.
        key, executor = os.environ.pop(KEY_VARIABLE), int(os.environ["POSSE_EXECUTOR_ID"])
    except (KeyError, ValueError) as error:
        sys.exit(f"posse.worker: posse must start this program: the variable {error} is missing or wrong")
    channel = connect(sys.argv[1], key.strip().encode())
    hello = {"executor": executor, "python": list(sys.version_info[:2])}
    channel.send(json.dumps(hello).encode())
    channel.trust()
    Worker(channel).work()


if __name__ == "__main__":
    main()
