"""Runs the example with its own `posse`, and checks the sums.

1. as a user does, and a stranger who reaches the driver's port gets no call;
2. beside a `posse run` that is killed and started again, after a worker was killed in the middle of a call: both sums are
   right, and no call ran twice at once.
"""

import importlib.util
import json
import os
import pickle
import signal
import socket
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import NODES, ROOT, Checks, driver_host, free_port, listens, pod_on_nodes, posse_binary

sys.path.append(str(ROOT / "clients/python"))
import posse
from posse._channel import Channel

PRIMES, CALLS = 41_538, 200
HAS_JOBLIB = bool(importlib.util.find_spec("joblib"))
SUMS = f"futures {PRIMES}\n" + (f"joblib {PRIMES}\n" if HAS_JOBLIB else "joblib is not installed\n")
DRIVER, PATH = "examples/futures/driver.py", "clients/python:examples/futures"


def posse_yaml(checks, *more):
    if NODES:
        # The folders of this machine are root's.
        spec = pod_on_nodes({})
        [fields] = spec.pop("containers")
        told = lambda indent, map: "".join(f"{indent}{key}: {json.dumps(value)}\n" for key, value in map.items() if key != "image")
        more = (*more, ("    security: restricted\n", ""), ("python:3.12-slim", fields["image"]),
                ("        containers:\n", told("        ", spec) + "        containers:\n"),
                ("name: worker\n", "name: worker\n" + told("            ", fields)))
    return checks.configuration(
        ("python3, examples", f"{sys.executable}, examples"), ("[python3, -m", f"[{sys.executable}, -m"),
        ("env:\n              - {name: PY", f"env:\n              - {{name: LOG, value: {checks.folder / 'log'}}}\n              - {{name: PY"),
        *more)


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def knock(checks):
    """Who does not know the key gets nothing, and nothing that they send is unpickled."""
    environment = Path(f"/proc/{checks.process(1)}/cmdline").read_text().split("\0")
    host, port = environment[-2].rsplit(":", 1)
    touched = checks.folder / "touched"
    for bomb in (pickle.dumps(Bomb(touched)), json.dumps({"executor": 99, "python": sys.version_info[:2]}).encode()):
        with socket.create_connection((host, int(port)), timeout=10) as stream:
            channel = Channel(stream, b"0" * 32, is_driver=False)
            channel.send(bomb)
            try:
                checks.same("what a stranger gets", channel.receive(), "the end of the connection")
            except OSError as error:
                checks.same("what a stranger gets", isinstance(error, ConnectionResetError), True)
    checks.same("a stranger's pickle was read", touched.exists(), False)


def as_a_user():
    with Checks("futures") as checks:
        run = checks.start("posse", posse_binary(), "run", "--dev", "-f", posse_yaml(checks), "--instance", checks.instance,
                           "--events", str(checks.folder / "events"))
        log = checks.folder / "log"
        checks.until("a call", log.exists)
        knock(checks)
        checks.same("ports that other machines reach", checks.beyond_loopback(), [])
        checks.until("the end of the run", lambda: run.poll() is not None)
        checks.same("exit code", run.returncode, 0)
        checks.same("the sums", checks.output("posse.out"), SUMS)
        checks.same("the highest target", max(event["target"] for event in checks.events("target_changed")), 4)
        begun = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin "))
        checks.same("beginnings of each call", set(begun.values()), {1 + HAS_JOBLIB})
        checks.same("workers left behind", checks.processes(), [])


def with_losses():
    with Checks("futures") as checks:
        port, host, control, key = free_port(), driver_host(), f"unix:{checks.folder / 'control'}", checks.folder / "key"
        key.write_text(checks.instance * 8)
        command = f"  command: [env, PYTHONPATH=clients/python, {sys.executable}, {DRIVER}]\n"
        # posse does not start this driver: so it can be killed and started again without it.
        configuration = posse_yaml(
            checks, (command, ""), ("port: auto", f"port: {port}\n  host: {host}"), ("head -c 32 /dev/urandom | base64", f"cat {key} "))
        cluster = checks.start_cluster()
        first = checks.start_posse("posse", "-f", configuration, cluster=cluster)
        checks.until("posse", lambda: listens(checks.folder / "control"))
        driver = checks.start("driver", sys.executable, DRIVER, POSSE_DRIVER_HOST=host, POSSE_DRIVER_PORT=str(port),
                              POSSE_CONTROL=control, PYTHONPATH=PATH, FUTURES_KEY_FILE=str(key))
        log = checks.folder / "log"
        ended = lambda: log.exists() and log.read_text().count("end ")
        checks.until("thirty calls", lambda: ended() >= 30)
        os.kill(checks.process(1), signal.SIGKILL)
        checks.until("its loss", lambda: checks.events("executor_lost"))
        first.kill()
        first.wait()
        os.kill(checks.process(2), signal.SIGKILL)
        n_before = ended()
        checks.until("calls without posse", lambda: ended() > n_before + 10)
        second = checks.start_posse("posse-again", "-f", configuration, cluster=cluster)
        checks.until("the end of the work", lambda: driver.poll() is not None)
        status = posse.Client(control).status()
        second.terminate()
        checks.until("posse's end", lambda: second.poll() is not None)
        checks.same("exit codes", (driver.returncode, second.returncode), (0, 0))
        checks.same("the sums", checks.output("driver.out"), SUMS)
        checks.same("runs of posse", len({event["run"] for event in checks.events("started")}), 2)
        checks.same("the target after the driver's end", [group.target for group in status.groups.values()], [0])
        check_calls(checks, log)


def check_calls(checks, log):
    """Each call ended as often as it was made, and never ran in two workers at once."""
    n_made, runs = 1 + HAS_JOBLIB, defaultdict(list)
    for line in log.read_text().splitlines():
        what, start, executor, _ = line.split()
        runs[start].append((what, executor))
    checks.same("calls", len(runs), CALLS)
    # A worker that was killed may have written its end, and not sent its answer: so only what it held begins again.
    again = [story for story in runs.values() if sum(what == "begin" for what, _ in story) > n_made]
    # One that is scaled down while it starts may do calls whose answers are lost with its network.
    cut = {str(event["executor"]) for event in checks.events("executor_deleted") if event["cause"] == "scaled_down"}
    held = [story for story in again if not cut & {executor for _, executor in story}]
    checks.same("calls that began again, at most one for each lost worker", len(held) <= 2, True)
    ends = {sum(what == "end" for what, _ in story) for story in runs.values() if story not in again}
    checks.same("ends of each of the others", ends, {n_made})
    twice = 0
    for story in runs.values():
        holder = None
        for what, executor in story:
            # A worker that was killed wrote no end: only those two may be begun over.
            twice += what == "begin" and holder not in (None, "1", "2")
            holder = executor if what == "begin" else None
    checks.same("calls that ran twice at once", twice, 0)
    checks.same("workers left behind", checks.processes(), [])


if not NODES:
    as_a_user()
with_losses()
