#!/usr/bin/env python3
"""Tests of `posse.futures` against a real `posse run --dev`.

    test_futures.py [unittest's arguments]      $POSSE: the posse program; by default the one that was built last
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import BrokenExecutor, CancelledError
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples")]

from checks import LOOPBACK, posse_binary  # noqa: E402

os.environ["POSSE_EXE"] = os.environ["POSSE"] = posse_binary()
os.environ["PYTHONPATH"] = str(HERE)
os.environ.pop("POSSE_CONTROL", None)

from posse._channel import Channel  # noqa: E402
from posse.futures import PosseExecutor, RemoteError, WorkerLost  # noqa: E402

# Functions of a program are pickled by name: the workers import this module as `test_futures`.
if __name__ == "__main__":
    sys.modules["test_futures"] = sys.modules["__main__"]
SECONDS_MAX = 60


class Odd(Exception):
    """Can be written, but not read."""

    def __init__(self, one, two):
        super().__init__(one)


def square(n):
    return n * n


def raise_(kind, *args):
    raise kind(*args)


def die_once(path):
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


def lock():
    return threading.Lock()


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)


for function in (Odd, square, raise_, die_once, lock, wait_for):
    function.__module__ = "test_futures"


class Futures(unittest.TestCase):
    def test_results_and_exceptions(self):
        with PosseExecutor(2, dev=True) as executor:
            self.assertEqual(list(executor.map(square, range(50))), [n * n for n in range(50)])
            self.assertEqual(list(executor.map(pow, range(10), [2] * 10, chunksize=3)), [n * n for n in range(10)])
            for args, kind, word in [((KeyError, "x"), KeyError, "x"), ((Odd, 1, 2), RemoteError, "Odd"), ((SystemExit, 3), SystemExit, "3")]:
                error = executor.submit(raise_, *args).exception(SECONDS_MAX)
                self.assertIs(type(error), kind)
                self.assertIn(word, str(error))
                self.assertIn("in raise_", str(error.__cause__))
            self.assertIn("pickle", str(executor.submit(lock).exception(SECONDS_MAX)))
            self.assertIn("pickle", str(executor.submit(square, threading.Lock()).exception(SECONDS_MAX)))
        with self.assertRaises(RuntimeError):
            executor.submit(square, 1)

    def test_a_lost_worker(self):
        """Its call is made again; one that ends every worker fails, and the others go on."""
        with tempfile.TemporaryDirectory() as folder, PosseExecutor(2, dev=True, retries=1) as executor:
            self.assertEqual(executor.submit(die_once, f"{folder}/died").result(SECONDS_MAX), "lives")
            with self.assertRaises(WorkerLost) as raised:
                executor.submit(os._exit, 0).result(SECONDS_MAX)
            self.assertIn("2 workers", str(raised.exception))
            self.assertEqual(executor.submit(square, 3).result(SECONDS_MAX), 9)

    def test_calls_that_wait_can_be_cancelled(self):
        with tempfile.TemporaryDirectory() as folder:
            executor = PosseExecutor(1, dev=True)
            first = executor.submit(wait_for, f"{folder}/go")
            rest = [executor.submit(square, n) for n in range(3)]
            while not first.running():
                time.sleep(0.02)
            self.assertEqual((first.cancel(), rest[0].cancel()), (False, True))
            executor.shutdown(wait=False, cancel_futures=True)
            Path(folder, "go").touch()
            self.assertIsNone(first.result(SECONDS_MAX))
            for future in rest:
                self.assertRaises(CancelledError, future.result, SECONDS_MAX)
            executor.shutdown()

    def test_workers_without_work_end(self):
        with PosseExecutor(3, dev=True, idle_timeout=0.2) as executor:
            list(executor.map(square, range(100)))
            end = time.monotonic() + SECONDS_MAX
            while executor._workers or executor.client.groups()[executor.group].target:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.1)
            self.assertEqual(executor.submit(square, 4).result(SECONDS_MAX), 16)

    def test_the_end_of_posse_ends_the_calls(self):
        with tempfile.TemporaryDirectory() as folder, PosseExecutor(1, dev=True) as executor:
            calls = [executor.submit(wait_for, f"{folder}/never") for _ in range(2)]
            while not calls[0].running():
                time.sleep(0.02)
            os.kill(executor._run.pid, signal.SIGKILL)
            for call in calls:
                self.assertIsInstance(call.exception(SECONDS_MAX), BrokenExecutor)
            self.assertRaises(BrokenExecutor, executor.submit, square, 1)

    def test_what_a_failed_worker_said_is_told(self):
        executor = PosseExecutor(1, dev=True, image="any", command=["sh", "-c", "echo no such module >&2; exit 3"])
        call, until = executor.submit(square, 1), time.monotonic() + SECONDS_MAX
        told = re.compile("lost: .*exit code 3.* no such module")
        while not told.search(executor._run.messages()):
            self.assertLess(time.monotonic(), until, executor._run.messages())
            time.sleep(0.05)
        executor.shutdown(cancel_futures=True)
        self.assertRaises(CancelledError, call.result, SECONDS_MAX)

    def test_a_worker_of_another_version_is_told(self):
        with PosseExecutor(1, dev=True) as executor:
            with socket.create_connection(executor._listener.getsockname(), timeout=10) as stream:
                channel = Channel(stream, executor._key, is_driver=False)
                channel.send(json.dumps({"executor": 99, "python": [2, 7]}).encode())
                self.assertRaises(OSError, channel.receive)
            with self.assertRaises(BrokenExecutor) as raised:
                executor.submit(square, 1).result(SECONDS_MAX)
            self.assertIn("Python 2.7", str(raised.exception))

    def test_workers_of_each_address_family_reach_the_driver(self):
        with PosseExecutor(1, image="any", options=["--dev"]) as executor:
            for host in ("127.0.0.1", LOOPBACK):
                socket.create_connection((host, executor._listener.getsockname()[1]), timeout=10).close()

    def test_a_program_that_ends_waits_for_its_calls(self):
        program = (
            "from posse.futures import PosseExecutor\nexecutor = PosseExecutor(2, dev=True)\n"
            "future = executor.submit(pow, 2, 10)\nfuture.add_done_callback(lambda done: print(done.result(), executor._run.pid, flush=True))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX)
        self.assertEqual((done.returncode, done.stdout.split()[:1]), (0, ["1024"]), done.stderr)
        self.assertFalse(Path("/proc", done.stdout.split()[1]).exists())

    def test_wrong_arguments_are_told(self):
        for arguments, word in [({"max_workers": 2_000}, "max_workers"), ({"min_workers": 9, "max_workers": 2}, "min_workers"), ({"retries": -1}, "retries")]:
            with self.assertRaises(ValueError) as raised:
                PosseExecutor(dev=True, **arguments)
            self.assertIn(word, str(raised.exception))


class Readme(unittest.TestCase):
    def test_its_block_runs(self):
        [block] = re.findall(r"```futures\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=SECONDS_MAX)
        self.assertEqual((done.returncode, done.stdout), (0, "285\n"), done.stderr)


class Frames(unittest.TestCase):
    def setUp(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.ours = socket.create_connection(listener.getsockname())
            self.theirs, _ = listener.accept()

    def tearDown(self):
        self.ours.close()
        self.theirs.close()

    def pair(self, ours, theirs):
        made = []
        thread = threading.Thread(target=lambda: made.append(Channel(self.theirs, theirs, is_driver=True)))
        thread.start()
        worker = Channel(self.ours, ours, is_driver=False)
        thread.join()
        return worker, made[0]

    def test_only_who_knows_the_key_is_heard(self):
        worker, driver = self.pair(b"a" * 32, b"b" * 32)
        worker.send(b"hello")
        self.assertRaises(OSError, driver.receive)

    def refuses(self, change):
        worker, driver = self.pair(b"a" * 32, b"a" * 32)
        worker.send(b"hello")
        frame = self.theirs.recv(1_000, socket.MSG_PEEK)
        self.assertEqual(driver.receive(), b"hello")
        self.ours.sendall(change(frame))
        self.assertRaises(OSError, driver.receive)

    def test_a_frame_that_is_repeated_is_refused(self):
        self.refuses(lambda frame: frame)

    def test_a_frame_that_is_changed_is_refused(self):
        self.refuses(lambda frame: frame[:-1] + b"!")

    def test_a_frame_that_is_too_large_is_refused_before_it_is_read(self):
        worker, driver = self.pair(b"a" * 32, b"a" * 32)
        worker.send(b"x" * 100)
        self.assertRaises(OSError, driver.receive, 99)


if __name__ == "__main__":
    unittest.main()
