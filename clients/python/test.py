#!/usr/bin/env python3
"""Tests of the client against a real `posse run --dev`, and against servers that misbehave. Also runs the README.

    test.py [unittest's arguments]      $POSSE: the posse program; by default the one that was built last
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import socketserver
import string
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples")]
os.environ["PYTHONPATH"] = str(HERE)

from checks import LOOPBACK, beyond_loopback, listens, posse_binary  # noqa: E402

os.environ["POSSE_EXE"] = os.environ["POSSE"] = posse_binary()
os.environ.pop("POSSE_CONTROL", None)

import posse  # noqa: E402
from posse import _client  # noqa: E402

SECONDS_MAX = 60
# How long a call waits for a posse that does not answer.
CALL_SECONDS_MAX = 60
EXECUTORS = dict(dev=True, executors=2, command=["sleep", "600"])


def until(what, condition):
    end = time.monotonic() + SECONDS_MAX
    while not (got := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {SECONDS_MAX} s")
        time.sleep(0.02)
    return got


def is_alive(pid):
    try:
        # A zombie has ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Readme(unittest.TestCase):
    def test_every_block_runs(self):
        text = (HERE / "README.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.assertEqual(len(blocks), 5)
        with posse.run(**EXECUTORS) as run:
            program = "\n".join(blocks).replace("posse.Client()", f"posse.Client({run.address!r})")
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-exec-3", done.stdout)
        self.assertIn("/nowhere.yaml", done.stdout)
        self.assertIn("killed False", done.stdout)

    def test_dask(self):
        try:
            import distributed  # noqa: F401
        except ImportError:
            self.skipTest("distributed is not installed")
        [block] = re.findall(r"```dask\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
        # Reports all the time, so that some come in posse's last moments.
        program = f"import posse.dask, time\nposse.dask.TICK_MS = 10\n{block}print(time.monotonic())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=3 * SECONDS_MAX)
        ended = time.monotonic()
        self.assertEqual((done.returncode, done.stdout[:2]), (0, "6\n"), done.stderr)
        # Python's end waits for its threads: none of them may wait for a posse that is gone.
        self.assertLess(ended - float(done.stdout[2:]), CALL_SECONDS_MAX / 2)


DASK_PROGRAM = """
import posse.dask, sys
from dask.distributed import Client, Security

security = {"none": None, "files": Security(require_encryption=True)}[sys.argv[1]]
with posse.dask.PosseCluster(2, dev=True, security=security) as cluster, Client(cluster) as client:
    client.wait_for_workers(2)
    print(cluster.scheduler_address, client.submit(sum, [1, 2, 3]).result(), cluster._run.pid, flush=True)
    input()
"""


class Dask(unittest.TestCase):
    """A cluster with `dev`, of which nothing can be reached from other machines."""

    def test_the_end_is_silent(self):
        """Also with work that nobody waits for, and if the client is closed after the cluster."""
        program = """
import sys, time
from dask.distributed import Client
from posse.dask import PosseCluster

cluster = PosseCluster(2, dev=True)
client = Client(cluster)
client.wait_for_workers(2)
work = client.map(lambda n: time.sleep(600), range(4))
print("CLOSING", file=sys.stderr)
cluster.close()
client.close()
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * SECONDS_MAX)
        self.assertEqual((done.returncode, done.stderr.rpartition("CLOSING\n")[2]), (0, ""), done.stderr)

    def test_workers_of_each_address_family_reach_the_scheduler(self):
        from posse.dask import PosseCluster

        with PosseCluster(image="any", security=False, options=["--dev"]) as cluster:
            for host in ("127.0.0.1", LOOPBACK):
                socket.create_connection((host, cluster.scheduler.port), timeout=10).close()

    def setUp(self):
        try:
            import distributed  # noqa: F401
        except ImportError:
            self.skipTest("distributed is not installed")

    def cluster(self, security, protocol, **environment):
        """Runs a cluster; returns what a stranger's client says who finds out the scheduler's address."""
        words = [sys.executable, "-c", DASK_PROGRAM, security]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **pipes, env={**os.environ, **environment}) as process:
            try:
                address, total, posse_pid = process.stdout.readline().split()
                self.assertEqual((address[: len(protocol)], total), (protocol, "6"))
                self.assertEqual(beyond_loopback([process.pid, *descendants(int(posse_pid))]), [])
                stranger = "import sys; from dask.distributed import Client; print(Client(sys.argv[1], timeout=3))"
                words = [sys.executable, "-c", stranger, address.replace("tls", "tcp")]
                return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX).returncode
            finally:
                process.communicate("\n", timeout=SECONDS_MAX)

    def test_only_this_machine_reaches_a_cluster_with_dev(self):
        self.assertEqual(self.cluster("none", "tcp://"), 0)

    def test_only_who_has_the_key_reaches_a_cluster_with_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-subj", "/CN=dask", "-addext", "keyUsage=critical,digitalSignature,keyCertSign", "-keyout", f"{folder}/key", "-out", f"{folder}/cert"],
                capture_output=True)
            self.assertEqual(made.returncode, 0, made.stderr)
            variables = {"CA_FILE": "cert"}
            for role in ("SCHEDULER", "WORKER", "CLIENT"):
                variables.update({f"{role}__CERT": "cert", f"{role}__KEY": "key"})
            tls = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": f"{folder}/{file}" for name, file in variables.items()}
            self.assertNotEqual(self.cluster("files", "tls://", **tls), 0)


class Runs(unittest.TestCase):
    def test_a_run_ends_with_its_block(self):
        with posse.run(**EXECUTORS) as run:
            client = run.client
            events = []
            reader = threading.Thread(target=lambda: events.extend(client.events()))
            reader.start()
            self.assertEqual(client.wait_running(2).groups[run.group].running, 2)
            self.assertEqual(run.scale(3), 3)
            [lost] = client.kill([1], reason="just so").killed
            status = client.wait_running(3)
            self.assertNotIn(lost, [id for id, one in status.executors.items() if one.state == "running"])
        reader.join(SECONDS_MAX)
        self.assertIsNotNone(run.returncode)
        names = [event.name for event in events]
        self.assertEqual((names[0], names[-1]), ("started", "stopped"))
        self.assertEqual([event.seq for event in events], list(range(events[0].seq, events[0].seq + len(events))))
        [loss] = [event for event in events if event.name == "executor_lost"]
        self.assertEqual((loss.executor, loss.fields["message"]), (1, "just so"))

    def test_a_run_ends_with_a_killed_process(self):
        program = (
            f"import posse, time\nrun = posse.run(**{EXECUTORS!r})\nrun.client.wait_running(2)\n"
            "print(run.pid, flush=True)\ntime.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            pid = int(process.stdout.readline())
            self.assertTrue(is_alive(pid))
            process.kill()
        until("posse's end", lambda: not is_alive(pid))

    def test_a_forked_child_neither_holds_nor_ends_a_run(self):
        program = (
            f"import os, posse, sys, time\nrun = posse.run(**{EXECUTORS!r})\n"
            # This one ends as Python does, with all that is registered for the end.
            "if (child := os.fork()) == 0:\n    run.client.wait_running(2)\n    sys.exit(run.returncode)\n"
            "code = os.waitpid(child, 0)[1]\nrun.client.wait_running(2)\n"
            "if (child := os.fork()) == 0:\n    time.sleep(600)\n"
            "print(code, run.pid, child, flush=True)\ntime.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            code, pid, child = map(int, process.stdout.readline().split())
            process.kill()
        try:
            self.assertEqual(code, 0)
            until("posse's end", lambda: not is_alive(pid))
            self.assertTrue(is_alive(child))
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_run_that_cannot_begin_says_why(self):
        with self.assertRaises(posse.Error) as raised:
            posse.run(dev=True, executors=2, command="true", options=["--exectors", "3"])
        self.assertIn("--executors", str(raised.exception))

    def test_a_run_of_nothing_is_explained_in_python(self):
        self.addCleanup(os.chdir, os.getcwd())
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for arguments in ({}, {"dev": True, "executors": 2}, {"options": ["--namespace", "jobs"]}):
                with self.assertRaises(posse.Error) as raised:
                    posse.run(**arguments)
                self.assertIn("give command=[...] with dev=True, image=..., or file=...", str(raised.exception))
                self.assertNotIn("--", str(raised.exception))
            # posse finds this one, and says what is wrong with it.
            Path("posse.yaml").write_text("executor: []")
            with self.assertRaises(posse.Error) as raised:
                posse.run(dev=True)
            self.assertIn("posse.yaml:1:1", str(raised.exception))

    def test_a_start_that_fails_leaves_nothing(self):
        def cannot(*_):
            raise posse.Error("no posse")

        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "posse")
            program.write_text("no program")
            program.chmod(0o755)
            n_open = len(os.listdir("/proc/self/fd"))
            with mock.patch("tempfile.tempdir", folder):
                for arguments, word in [({"posse": str(program)}, str(program)), ({"posse": None}, "no posse")]:
                    with mock.patch("posse._run.find_posse", cannot), self.assertRaises(posse.Error) as raised:
                        posse.Run([], **arguments)
                    self.assertIn(word, str(raised.exception))
                    del raised
                    self.assertEqual(os.listdir(folder), ["posse"])
            self.assertEqual(len(os.listdir("/proc/self/fd")), n_open)

    def test_calls_to_a_posse_that_has_ended_say_why_at_once(self):
        with posse.run(dev=True, executors=0, command=["sleep", "600"]) as run:
            run.client.status()
            os.kill(run.pid, signal.SIGTERM)
            code = until("posse's end", lambda: run.returncode is not None and f"exit code {run.returncode}")
            began = time.monotonic()
            with self.assertRaises(posse.Unreachable) as raised:
                run.client.status()
            self.assertIn(code, str(raised.exception))
            self.assertIn(run.messages(), str(raised.exception))
        with self.assertRaises(posse.Unreachable) as raised:
            run.client.status()
        self.assertIn(code, str(raised.exception))
        self.assertLess(time.monotonic() - began, CALL_SECONDS_MAX / 2)

    def test_tasks_run_once_and_are_told_as_ended_once(self):
        command = ["sh", "-c", 'echo "$PART"; exit "$0"', "0"]
        with posse.run(dev=True, executors=0, command=command) as run:
            tasks = run.client.executors
            first = tasks.submit("a", env={"PART": "1"})
            self.assertEqual((first.key, first.has_ended, first.exit_code), ("a", False, None))
            again = tasks.submit_all([{"key": "a", "env": {"PART": "1"}}, {"key": "b"}])
            self.assertEqual([task.key for task in again], ["a", "b"])
            with self.assertRaises(posse.Refused) as refused:
                tasks.submit("a", env={"PART": "2"})
            self.assertEqual((refused.exception.status, refused.exception.field), (409, "env"))
            with self.assertRaises(posse.Refused) as refused:
                tasks.get("c")
            self.assertEqual(refused.exception.status, 404)
            until("both to end", lambda: all(task.has_ended for task in tasks.list()))
            self.assertEqual({task.key: task.state for task in tasks.list()}, {"a": "succeeded", "b": "succeeded"})
            self.assertEqual(tasks.cancel("a").state, "succeeded")
            told = [event.fields["key"] for event in run.client.events(follow=False) if event.name == "task_ended"]
            self.assertEqual(sorted(told), ["a", "b"])

    def test_losses_are_told_once_also_over_a_restart(self):
        """posse is killed and started again, and meanwhile an executor dies."""
        instance = "".join(random.choices(string.ascii_lowercase, k=5))
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig, control = f"{folder}/kubeconfig", f"unix:{folder}/control"
            exe = os.environ["POSSE"]
            pod = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "w", "image": "x", "command": ["sleep", "600"]}]}
            Path(folder, "posse.json").write_text(json.dumps({
                "app": "again", "executors": [{"group": "workers", "count": 3, "pod": {"spec": pod}}]}))
            command = [exe, "run", "-f", f"{folder}/posse.json", "--kubeconfig", kubeconfig, "--instance", instance, "--control", control]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            dev = subprocess.Popen([exe, "dev", "--kubeconfig", kubeconfig], **quiet)
            started = [dev]
            try:
                until("a cluster", Path(kubeconfig).exists)
                started.append(subprocess.Popen(command, **quiet))
                client = posse.Client(control)
                until("posse", lambda: listens(f"{folder}/control"))
                client.wait_running(3)
                losses = client.losses()
                self.assertEqual(losses.take([1, 2, 3]), [])
                client.kill([2])
                [loss] = until("a loss", lambda: losses.take([1, 2, 3]))
                self.assertEqual((loss.executor, loss.reason, loss.caused_by_app), (2, "killed", False))
                client.wait_running(3)
                started[1].kill()
                started[1].wait()
                [pid] = pids("POSSE_EXECUTOR_ID=3", f"POSSE_INSTANCE={instance}")
                os.kill(pid, signal.SIGKILL)
                started.append(subprocess.Popen(command, **quiet))
                lost = until("the other loss", lambda: losses.take([1, 3, 4]))
                self.assertEqual([loss.executor for loss in lost], [3])
                self.assertEqual(losses.take([1, 4]), [])
            finally:
                for process in reversed(started):
                    process.terminate()
                    process.wait(SECONDS_MAX)


def descendants(pid):
    """A process and all below it."""
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [pid, *(one for child in children for one in descendants(int(child)))]


def pids(*variables):
    """The processes that have these variables in their environment."""
    wanted = {variable.encode() for variable in variables}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            has_all = wanted <= set((path / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if has_all:
            found.append(int(path.name))
    return found


class Answers:
    """In place of a client: its events, of which an exception is raised, and the states of its executors by id."""

    def __init__(self, *events, **states):
        self.all, self.states = list(events), {int(name[1:]): state for name, state in states.items()}

    def events(self, *, follow, after):
        for event in self.all if after is None else self.all[self.all.index(after) + 1:]:
            if isinstance(event, Exception):
                self.all.remove(event)
                raise event
            yield event

    def wait_ready(self):
        pass

    def status(self):
        return SimpleNamespace(executors={id: SimpleNamespace(state=state) for id, state in self.states.items()})


class Losses(unittest.TestCase):
    def event(self, seq, name, executor=None):
        return posse.Event(name, "r", seq, "", executor, None, {"reason": "just so"})

    def test_an_executor_that_drains_is_not_lost_yet(self):
        answers = Answers(self.event(1, "restarted"), _1="draining", _2="running", _3="terminating")
        self.assertEqual([loss.executor for loss in _client.Losses(answers).take([1, 2, 3, 4])], [3, 4])

    def test_a_call_that_fails_loses_no_loss(self):
        answers = Answers(self.event(1, "executor_lost", 1), posse.Unreachable("gone"), self.event(2, "executor_lost", 2))
        losses = _client.Losses(answers)
        with self.assertRaises(posse.Unreachable):
            losses.take([1, 2])
        self.assertEqual([loss.executor for loss in losses.take([1, 2])], [1, 2])
        self.assertEqual(losses.take([1, 2]), [])


class Cutting(socketserver.StreamRequestHandler):
    """Passes on to posse, and cuts the answer off after a few thousand bytes."""

    def handle(self):
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(self.server.path)
            there.sendall(self.rfile.readline())
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                there.sendall(line)
            there.sendall(b"\r\n")
            left = self.server.cuts.pop() if self.server.cuts else 1 << 30
            # The client may have left.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while left > 0 and (some := there.recv(min(left, 4_096))):
                    self.wfile.write(some)
                    left -= len(some)


class Connections(unittest.TestCase):
    def test_no_event_is_missing_if_connections_break(self):
        with posse.run(**EXECUTORS) as run, tempfile.TemporaryDirectory() as folder:
            run.client.wait_running(2)
            for n in range(1, 60):
                run.scale(n % 4)
            whole = list(run.client.events(follow=False))

            class Proxy(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
                daemon_threads = True
                path = run.address[len("unix:"):]
                cuts = [700, 1, 2_500, 400, 3_000, 150, 1_000]

            with Proxy(f"{folder}/control", Cutting) as proxy:
                threading.Thread(target=proxy.serve_forever, daemon=True).start()
                client = posse.Client(f"unix:{folder}/control")
                client._has_answered = True
                read = []
                for event in client.events():
                    read.append(event)
                    if event.seq >= whole[-1].seq:
                        break
                proxy.shutdown()
            self.assertEqual(proxy.cuts, [])
            self.assertEqual([event.seq for event in read], [event.seq for event in whole])

    def answer(self, *answers, **settings):
        """What a client gets from a server that gives these answers (status, headers, body) in turn."""
        rest = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, headers, body = rest.pop(0) if len(rest) > 1 else rest[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                return posse.Client(f"127.0.0.1:{server.server_port}", **settings).call("GET", "/v1/status")
            finally:
                server.shutdown()

    def fails(self, *answers, **settings):
        with self.assertRaises(posse.Error) as raised:
            self.answer(*answers, **settings)
        return raised.exception

    def test_a_busy_posse_is_asked_again(self):
        busy = [(429, {"Retry-After": "0"}, b'{"error": "busy"}'), (503, {}, b'{"error": "not ready"}')]
        self.assertEqual(self.answer(*busy, (200, {}, b'{"a": 1}')), {"a": 1})
        error = self.fails(busy[0], wait=0.0)
        self.assertEqual((error.status, str(error)), (429, "GET /v1/status: 429 busy"))

    def test_errors_say_what_is_wrong_and_what_to_do(self):
        for answer, words in [
            ((401, {}, b'{"error": "no token"}'), ["401", "no token", "--control-token-file"]),
            ((404, {}, b'{"error": "there is no such call"}'), ["no such call", "too old"]),
            ((400, {}, b'{"error": "is no number", "field": "target"}'), ["target: is no number"]),
            ((200, {}, b"<html>"), ["not posse's", "POSSE_CONTROL"]),
            ((500, {}, b"\xff" * 100_000), ["500"]),
            ((200, {"Content-Length": "900"}, b'{"a"'), ["cut off"]),
        ]:
            error = self.fails(answer, wait=0.0)
            for word in words:
                self.assertIn(word, str(error))
            self.assertLess(len(str(error)), 20_000)

    def test_another_server_is_not_called_too_old(self):
        for body in (b"there are only /metrics, /healthz and /readyz", b'{"error": "no such page"}', b""):
            self.assertNotIn("too old", str(self.fails((404, {}, body), wait=0.0)))

    def test_an_address_that_is_missing_or_dead(self):
        addresses = [(None, "POSSE_CONTROL"), ("unix:/nowhere", "/nowhere"), ("127.0.0.1:1", "posse run"),
                     ("localhost:abc", "abc"), ("local host:1", "local host")]
        for address, word in addresses:
            with self.assertRaises(posse.Unreachable) as raised:
                posse.Client(address).status()
            self.assertIn(word, str(raised.exception))
        with self.assertRaises(posse.Error) as raised:
            posse.Client("127.0.0.1:1", "/nowhere").status()
        self.assertIn("/nowhere", str(raised.exception))

    def test_the_token_goes_nowhere_but_to_a_socket_or_loopback(self):
        with tempfile.TemporaryDirectory() as folder:
            token = Path(folder, "token")
            token.write_text("secret")
            for address, host in [("127.8.9.1:80", "127.8.9.1"), ("localhost:80", "127.0.0.1"), ("[::1]:80", "::1")]:
                with mock.patch("socket.create_connection", side_effect=OSError("none")) as connect:
                    with self.assertRaises(posse.Unreachable):
                        posse.Client(address, str(token)).status()
                self.assertEqual(connect.call_args[0][0], (host, 80))
            for address, word in [("10.0.0.1:80", "127.0.0.1:PORT"), ("0.0.0.0:80", "127.0.0.1:PORT"),
                                  ("[::]:80", "127.0.0.1:PORT"), ("[2001:db8::1]:80", "127.0.0.1:PORT"),
                                  ("posse.example.com:80", "loopback"), ("localhost.example.com:80", "loopback"),
                                  ("127.0.0.1.example.com:80", "loopback"), ("me@10.0.0.1:80", "loopback"),
                                  ("::1:80", "loopback"), ("127.0.0.1:99999", "loopback"), ("127.0.0.1", "loopback")]:
                with mock.patch("socket.create_connection") as connect, self.assertRaises(posse.Unreachable) as raised:
                    posse.Client(address, str(token)).status()
                self.assertIn(word, str(raised.exception), address)
                connect.assert_not_called()

    def test_waiting_for_executors_ends_in_time_without_posse(self):
        client = posse.Client("unix:/nowhere")
        client._has_answered = True
        began = time.monotonic()
        with self.assertRaises(posse.Unreachable):
            client.wait_running(1, timeout=0.1)
        self.assertLess(time.monotonic() - began, CALL_SECONDS_MAX / 2)

    def test_a_posse_of_another_version_is_understood(self):
        """A newer one says more than this client knows, and an older one less."""
        group = {"group": "g", "target": 2, "min": 0, "max": None, "running": 2, "waiting": None, "message": None}
        executor = {"id": 1, "group": "g", "slot": 0, "pod": "a-1", "uid": "u", "state": "running", "node": "n",
                    "ip": "10.0.0.1", "since": "2026-01-01T00:00:00Z"}
        status = {"run": "r", "app": "a", "instance": "i", "namespace": "n", "groups": [group], "executors": [executor]}
        event = {"run": "r", "seq": 1, "time": "2026-01-01T00:00:00Z", "event": "of_a_newer_version"}
        task = {"key": "k", "state": "parked", "executor": None, "attempts": 0, "exit_code": None, "reason": None}
        for more in ({}, {"colour": "red", "parts": {"a": [1]}}):
            for one in (group, executor, status, event, task):
                one.update(more)
            read = posse.Status.of(status)
            self.assertEqual((read.groups["g"].running, read.executors[1].ready, read.outage), (2, False, None))
            self.assertEqual(posse.Event.of(event).name, "of_a_newer_version")
            self.assertEqual(posse.Task.of(task).state, "parked")

    def test_a_line_that_never_ends_is_bounded(self):
        class Endless:
            def readline(self, most):
                return b"x" * most

            def close(self):
                pass

        self.assertEqual(list(_client._read(Endless())), [])


if __name__ == "__main__":
    unittest.main()
