"""Runs the example with its own `posse` and checks the results.

    run.py [SEED]       SEED (default 1): which executors are killed, and when

1. under `posse run --dev`, beside another run of the same command: an executor is killed in the middle
   of an item, one item kills each executor that takes it, and the executor with the last item is stopped
   and sends no more heartbeats;
2. beside a `posse run` that is killed and restarted; in between one executor dies and the pod of another
   one is deleted, for which there will be no event;
3. as a submitted driver whose pod is deleted: its executors go on for the next one, and no item of theirs begins again;
4. without a posse.
"""

import collections
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from xmlrpc.client import Fault, ServerProxy

sys.path.append(str(Path(__file__).parents[1]))
from checks import LOOPBACK, ROOT, Checks, at, delete_pod, free_port, json_lines, posse_binary

DRIVER, CLIENT = "examples/queue/driver.py", "clients/python:examples/projects"
STARTS, END = range(0, 600_001, 12_500), 680_000
POISON, LAST = "poison", f"{STARTS[-1]}-{END}"
GOOD = {*(f"{start}-{start + 12_500}" for start in STARTS[:-1]), LAST}


class Play:
    def __init__(self, checks, *logs):
        """`logs`: the files with the driver's output, one for each of its pods."""
        self.checks, self.paths = checks, [checks.folder / log for log in logs]

    def record(self, *whats):
        return [line for path in self.paths for line in json_lines(path) if line["what"] in whats]

    def holders(self):
        """The executors that work on an item."""
        holders = set()
        for line in self.record("begun", "done", "lost"):
            holders.discard(line["executor"])
            if line["what"] == "begun" and line["item"] != POISON:
                holders.add(line["executor"])
        return sorted(holders)

    def kill_one(self, seeded):
        """Kills an executor in the middle of an item."""
        executor = seeded.choice(self.checks.until("an executor with an item", self.holders))
        self.checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={executor}")
        return executor

    def at_work(self):
        """The times at which the executors got their first items, in order."""
        first = {}
        for line in self.record("begun"):
            first.setdefault(line["executor"], line["time"])
        return first

    def six_work(self):
        return len(self.at_work()) >= 6

    def lost(self, executor):
        lost = [line for line in self.record("lost") if line["executor"] == executor]
        return lost and lost[0]

    def n_done(self):
        return len(self.record("done"))

    def check_sum(self):
        is_prime = bytearray([0, 0]) + bytearray([1]) * (END - 2)
        for n in range(2, int(END**0.5) + 1):
            if is_prime[n]:
                is_prime[n * n :: n] = bytes(len(range(n * n, END, n)))
        [end] = self.record("end")
        want = (sum(is_prime), len(GOOD), [POISON])
        self.checks.same("primes, items done, set aside", (end["primes"], end["n_done"], end["set_aside"]), want)

    def check_work(self):
        """The sum is right, and each item was done once, by an executor that held it."""
        same = self.checks.same
        self.check_sum()
        begun, done = (collections.Counter(line["item"] for line in self.record(what))
                       for what in ("begun", "done"))
        again = collections.Counter(
            line["item"] for line in self.record("lost") if line["item"] is not None)
        same("items done once", sorted(i for i in GOOD if done[i] == 1), sorted(GOOD))
        same("items begun as often as done or lost", begun, done + again)
        # Without an event nobody knows whether the application caused a loss.
        n_unseen = len([line for line in self.record("lost")
                        if line["item"] == POISON and line["reason"] == "not listed"])
        same("the poisoned item was begun, and done", (begun[POISON], done[POISON]), (2 + n_unseen, 0))
        let_go = {line["executor"] for line in self.record("lost") if line["reason"] == "killed"}
        work = collections.Counter()
        for line in self.record("begun", "done"):
            work[line["executor"]] += 1 if line["what"] == "begun" else -1
        same("work lost with those that the driver let go", sum(work[executor] for executor in let_go), 0)
        return sorted(let_go)


def under_posse(seed):
    with Checks("queue") as checks:
        play, seeded = Play(checks, "posse.out"), random.Random(seed)
        # Twelve busy executors on two cores may be late with a heartbeat.
        ipv6 = ("port: auto", f'port: auto\n  host: "{LOOPBACK}"')
        configuration = checks.configuration(("timeout: 6s", "timeout: 20s"), ipv6)
        posse = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", configuration,
            "--instance", checks.instance, "--events", str(checks.folder / "events"),
        )
        # The same command again: posse chooses another port.
        other = checks.start("other", posse_binary(), "run", "--dev", "-f", configuration)
        others = Play(checks, "other.out")
        checks.until("six executors", play.six_work)
        n_done = seeded.randrange(8, 16)
        checks.until(f"{n_done} items done", lambda: play.n_done() >= n_done)
        forge(checks)
        checks.same("ports that other machines reach", checks.beyond_loopback(), [])
        victims = []
        while not victims or play.lost(victims[-1])["item"] is None:  # it had just finished
            victims.append(play.kill_one(seeded))
            checks.until("the driver hears of it", lambda: play.lost(victims[-1]))
        begun = checks.until("the last item", lambda: [
            line for line in play.record("begun") if line["item"] == LAST])[0]
        checks.signal(signal.SIGSTOP, f"POSSE_EXECUTOR_ID={begun['executor']}")
        checks.until("the end", lambda: posse.poll() is not None)

        checks.same("exit code", posse.returncode, 0)
        checks.until("the end of the other run", lambda: other.poll() is not None)
        checks.same("the other run: exit code", other.returncode, 0)
        others.check_work()
        killed = play.check_work()
        lost = checks.events("executor_lost")
        poisoned = [line["executor"] for line in play.record("lost") if line["item"] == POISON]
        want = {executor: ("app_error", 1) for executor in poisoned}
        want |= {executor: ("app_error", 137) for executor in victims}
        want |= {begun["executor"]: ("heartbeat_timeout", None)}
        want |= {executor: ("killed", None) for executor in killed}
        same = checks.same
        same("losses", {e["executor"]: (e["reason"], e["exit_code"]) for e in lost}, want)
        same("losses told once", len(lost), len(want))
        same("let go, so that one is left", len(killed) > 0, True)
        story = checks.events("executor_lost", "executor_requested", "target_changed")
        # One that fails while the driver lets another one go makes room for it: then somebody comes for the other one.
        first = next(i for i, event in enumerate(story) if event.get("target", 6) < 6)
        n_asked = sum(event["event"] == "executor_requested" for event in story[first:])
        n_failed = sum(event.get("reason", "killed") != "killed" for event in story[first:])
        same("nobody comes for those that were let go", n_asked <= n_failed, True)
        targets = [event["target"] for event in checks.events("target_changed")]
        same("the target's highest and its last", (max(targets), targets[-1]), (6, 1))
        same("executors left behind", checks.processes(), [])
        six = checks.events("target_changed")[0]
        seconds = sorted(play.at_work().values())[5] - at(six)
        checks.say(f"target {six['target']} -> the sixth executor has work: {seconds:.2f} s")


def beside_posse(seed):
    with Checks("queue") as checks:
        play, seeded = Play(checks, "driver.out"), random.Random(seed)
        port, control = free_port(), f"unix:{checks.folder / 'control'}"
        command = f'  command: [env, "PYTHONPATH={CLIENT}", python3, {DRIVER}]\n'
        # posse does not start this driver, so it cannot choose the port.
        # The driver goes on when posse starts again, and so does its token.
        token = checks.folder / "token"
        token.write_text(checks.instance)
        configuration = checks.configuration(
            (command, ""), ("port: auto", f"port: {port}"),
            ("head -c 32 /dev/urandom | base64", f"cat {token} "))
        cluster = checks.start_cluster()

        def start_posse(log):
            return checks.start(
                log, posse_binary(), "run", "-f", configuration, "--kubeconfig", cluster,
                "--instance", checks.instance, "--events", str(checks.folder / "events"),
                "--control", control,
            )

        first = start_posse("posse")
        checks.until("posse", lambda: is_ready(control))
        driver = checks.start("driver", sys.executable, DRIVER, POSSE_DRIVER_HOST="127.0.0.1", POSSE_DRIVER_PORT=str(port),
                              POSSE_CONTROL=control, PYTHONPATH=CLIENT, TOKEN_FILE=str(token))
        checks.until("six executors", play.six_work)
        n_done = seeded.randrange(8, 16)
        checks.until(f"{n_done} items done", lambda: play.n_done() >= n_done)
        before = set(play.at_work())
        first.kill()
        first.wait()
        away = time.time()
        victim = play.kill_one(seeded)
        holders = checks.until("another one", lambda: sorted({*play.holders()} - {victim}))
        vanished = seeded.choice(holders)
        delete_pod(cluster, f"queue-{checks.instance}-exec-{vanished}")
        second = start_posse("posse-again")
        checks.until("the end of the work", lambda: driver.poll() is not None)
        second.terminate()
        checks.until("posse's end", lambda: second.poll() is not None)

        checks.same("exit codes", (driver.returncode, second.returncode), (0, 0))
        play.check_work()
        runs = {event["run"] for event in checks.events("started")}
        checks.same("runs of posse", len(runs), 2)
        gone = [bool(play.lost(executor)) for executor in (victim, vanished)]
        checks.same("those that went unseen are known as lost", gone, [True, True])
        poisoned = {line["executor"] for line in play.record("lost") if line["item"] == POISON}
        kept = before - {victim, vanished} - poisoned
        after = {line["executor"] for line in play.record("done") if line["time"] > away}
        checks.same("executors that worked on for the next run", kept <= after, True)
        checks.same("executors left behind", checks.processes(), [])


def outlived():
    with Checks("queue") as checks:
        cluster = checks.start_cluster()
        checks.submit(cluster)
        first = checks.until("the driver", lambda: checks.driver(cluster))
        play = Play(checks, first["pod"])
        checks.until("six executors, and fifteen items done", lambda: play.six_work() and play.n_done() >= 15)
        checks.instance = checks.driver(cluster)["instance"]
        delete_pod(cluster, first["pod"])
        second = checks.until("the next driver", lambda: checks.driver(cluster, other_than=first["pod"]))
        both, before = Play(checks, first["pod"], second["pod"]), set(play.holders())
        play = Play(checks, second["pod"])
        checks.until("the end", lambda: play.record("end"))
        checks.until("the end of the application", lambda: not checks.driver(cluster))
        play.check_sum()
        begun_by, alive, again = {}, set(), []
        for line in both.record("begun", "lost"):
            # With the poisoned item it ends, perhaps while there is no driver.
            if line["what"] == "lost" or line["item"] == POISON:
                alive.discard(line["executor"])
            else:
                if begun_by.get(line["item"]) in alive:
                    again.append(line["item"])
                alive.add(line["executor"])
                begun_by[line["item"]] = line["executor"]
        checks.same("begun again, of an executor that lives", again, [])
        poisoned = {line["executor"] for line in both.record("begun") if line["item"] == POISON}
        after = {line["executor"] for line in play.record("done")}
        checks.same("the instance stays", second["instance"], checks.instance)
        checks.same("executors that worked on for the next driver", sorted(before - poisoned - after), [])
        checks.until("no executor left behind", lambda: not checks.processes())


def forge(checks):
    """Whoever reaches the driver's port can neither send results nor ask for work."""
    environment = Path(f"/proc/{checks.processes()[0]}/environ").read_text().split("\0")
    said = dict(line.split("=", 1) for line in environment if "=" in line)
    forged = json.dumps([1, True, LAST, {LAST: 100_000_000}, "once"])
    with ServerProxy(f"http://{said['POSSE_DRIVER_HOST']}:{said['POSSE_DRIVER_PORT']}") as driver:
        for signature in ("", "0" * 64):
            try:
                checks.same("a forged result", driver.tell(forged, signature), "refused")
            except Fault as fault:
                checks.same("a forged result", "no executor of this run" in fault.faultString, True)


def is_ready(control):
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as posse:
        posse.connect(control.removeprefix("unix:"))
        posse.sendall(b"GET /readyz HTTP/1.1\r\nhost: posse\r\nconnection: close\r\n\r\n")
        return b" 200 " in posse.recv(100)


def without_posse(what, words, **environment):
    """The driver reports the problem and a remedy, and ends."""
    with Checks("queue") as checks:
        driver = subprocess.run(
            [sys.executable, DRIVER], cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": CLIENT, "POSSE_DRIVER_HOST": "127.0.0.1",
                 "POSSE_DRIVER_PORT": str(free_port()), **environment})
        said = {word: word in driver.stderr for word in words}
        checks.same(f"{what}: exit code, words", (driver.returncode, said), (1, dict.fromkeys(words, True)))


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    under_posse(seed)
    beside_posse(seed)
    outlived()
    without_posse("no posse is named", ["POSSE_CONTROL", "posse run"])
    without_posse("nobody answers", ["/nowhere", "posse run"], POSSE_CONTROL="unix:/nowhere")


main()
