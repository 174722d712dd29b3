"""Runs the example against a `posse` of its own and checks what came of it.

    run.py [SEED]       SEED (default 1): which executors are killed, and when

1. under `posse run --dev`: one executor is killed in the middle of an item, one item kills whoever
   takes it, and whoever has the last item is stopped and falls silent;
2. beside a `posse run` that is killed and started again; meanwhile one executor dies and another one
   vanishes with its pod, so that no event will ever tell of it;
3. without a posse, and with a wrong token.
"""

import collections
import http.client
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, at, free_port, json_lines, posse_binary

DRIVER = "examples/queue/driver.py"
ENDS = [*range(12_500, 600_001, 12_500), 680_000]
POISON, LAST = 20, len(ENDS)


class Play:
    def __init__(self, checks):
        self.checks = checks
        self.record_path = checks.folder / "record"

    def record(self, *whats):
        return [line for line in json_lines(self.record_path) if line["what"] in whats]

    def holders(self):
        """Executors in the middle of an item, with their processes."""
        holders = {}
        for line in self.record("begun", "done", "lost"):
            holders.pop(line["executor"], None)
            if line["what"] == "begun" and line["item"] != POISON:
                holders[line["executor"]] = line["pid"]
        return holders

    def kill_one(self, seeded):
        """Kills an executor in the middle of an item."""
        holders = self.checks.until("an executor with an item", self.holders)
        executor = seeded.choice(sorted(holders))
        os.kill(holders[executor], signal.SIGKILL)
        return executor

    def lost(self, executor):
        lost = [line for line in self.record("lost") if line["executor"] == executor]
        return lost and lost[0]

    def n_done(self):
        return len(self.record("done"))

    def check_work(self, output):
        """The sum is right, and each item was done once, by one that held it."""
        same = self.checks.same
        is_prime = bytearray([0, 0]) + bytearray([1]) * (ENDS[-1] - 2)
        for n in range(2, int(ENDS[-1] ** 0.5) + 1):
            if is_prime[n]:
                is_prime[n * n :: n] = bytes(len(range(n * n, ENDS[-1], n)))
        want = f"{len(ENDS)} items done, {sum(is_prime)} primes, set aside: {{{POISON}: 'app_error'}}"
        same("the driver's last word", output.strip(), want)
        begun, done = (collections.Counter(line["item"] for line in self.record(what))
                       for what in ("begun", "done"))
        again = collections.Counter(
            line["item"] for line in self.record("lost") if line["item"] is not None)
        good = [item for item in range(len(ENDS) + 1) if item != POISON]
        same("items done once", sorted(i for i in good if done[i] == 1), good)
        same("items begun as often as done or lost", begun, done + again)
        # Whom a death is charged to nobody can tell where nobody saw it.
        n_unseen = len([line for line in self.record("lost")
                        if line["item"] == POISON and line["reason"] == "gone unseen"])
        same("the poisoned item was begun, and done", (begun[POISON], done[POISON]), (2 + n_unseen, 0))
        killed = sorted(i for line in self.record("kill") for i in line["executors"])
        same("work lost with those that the driver let go",
             [self.lost(i)["item"] for i in killed if self.lost(i)], [None] * len(killed))
        return killed


def under_posse(seed):
    with Checks("queue") as checks:
        play, seeded = Play(checks), random.Random(seed)
        configuration = checks.configuration(("8900", free_port()))
        posse = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", configuration,
            "--instance", checks.instance, "--events", str(checks.folder / "events"),
            QUEUE_RECORD=str(play.record_path),
        )
        checks.until("six executors", lambda: len(play.record("registered")) >= 6)
        n_done = seeded.randrange(8, 16)
        checks.until(f"{n_done} items done", lambda: play.n_done() >= n_done)
        victims = []
        while not victims or play.lost(victims[-1])["item"] is None:  # it had just finished
            victims.append(play.kill_one(seeded))
            checks.until("the driver hears of it", lambda: play.lost(victims[-1]))
        begun = checks.until("the last item", lambda: [
            line for line in play.record("begun") if line["item"] == LAST])[0]
        os.kill(begun["pid"], signal.SIGSTOP)
        checks.until("the end", lambda: posse.poll() is not None)

        checks.same("exit code", posse.returncode, 0)
        killed = play.check_work(checks.output("posse.out"))
        lost = checks.events("executor_lost")
        poisoned = [line["executor"] for line in play.record("lost") if line["item"] == POISON]
        want = {executor: ("app_error", 13) for executor in poisoned}
        want |= {executor: ("app_error", 137) for executor in victims}
        want |= {begun["executor"]: ("heartbeat_timeout", None)}
        want |= {executor: ("killed", None) for executor in killed}
        same = checks.same
        same("losses", {e["executor"]: (e["reason"], e["exit_code"]) for e in lost}, want)
        same("losses told once", len(lost), len(want))
        same("let go, so that one is left", len(killed) > 0, True)
        story = checks.events("executor_lost", "executor_requested")
        first = next(i for i, event in enumerate(story) if event.get("reason") == "killed")
        n_asked = sum(event["event"] == "executor_requested" for event in story[first:])
        n_failed = sum(event.get("reason", "killed") != "killed" for event in story[first:])
        same("nobody comes for those that were let go", n_asked <= n_failed, True)
        targets = [event["target"] for event in checks.events("target_changed")]
        same("the target's highest and its last", (max(targets), targets[-1]), (6, 1))
        same("executors left behind", checks.processes(), [])
        six = checks.events("target_changed")[0]
        seconds = play.record("registered")[5]["time"] - at(six)
        checks.say(f"target {six['target']} -> the sixth executor registered: {seconds:.2f} s")


def beside_posse(seed):
    with Checks("queue") as checks:
        play, seeded = Play(checks), random.Random(seed)
        port, control = free_port(), f"127.0.0.1:{free_port()}"
        command = f'  command: [python3, {DRIVER}, "8900"]\n'
        configuration = checks.configuration((command, ""), ("8900", port))
        token, wrong = checks.folder / "token", checks.folder / "wrong"
        for path, text in [(token, "right"), (wrong, "wrong")]:
            path.write_text(text * 8)
            path.chmod(0o600)
        cluster = checks.folder / "kubeconfig"
        checks.start("dev", posse_binary(), "dev", "--kubeconfig", str(cluster))
        checks.until("a cluster", cluster.exists)

        def start_posse(log):
            return checks.start(
                log, posse_binary(), "run", "-f", configuration, "--kubeconfig", str(cluster),
                "--instance", checks.instance, "--events", str(checks.folder / "events"),
                "--control", control, "--control-token-file", str(token),
            )

        first = start_posse("posse")
        checks.until("posse", lambda: checks.events("started"))
        environment = {"POSSE_CONTROL": control, "POSSE_CONTROL_TOKEN_FILE": str(token)}
        without_posse("a wrong token", ["401", "--control-token-file"],
                      **{**environment, "POSSE_CONTROL_TOKEN_FILE": str(wrong)})
        driver = checks.start("driver", sys.executable, DRIVER, str(port), **environment,
                              QUEUE_RECORD=str(play.record_path))
        checks.until("six executors", lambda: len(play.record("registered")) >= 6)
        n_done = seeded.randrange(8, 16)
        checks.until(f"{n_done} items done", lambda: play.n_done() >= n_done)
        before = {line["executor"] for line in play.record("registered")}
        first.kill()
        first.wait()
        away = time.time()
        victim = play.kill_one(seeded)
        holders = checks.until("another one", lambda: sorted({*play.holders()} - {victim}))
        vanished = seeded.choice(holders)
        delete_pod(cluster.read_text(), f"queue-{checks.instance}-exec-{vanished}")
        second = start_posse("posse-again")
        checks.until("the end of the work", lambda: driver.poll() is not None)
        second.terminate()
        checks.until("posse's end", lambda: second.poll() is not None)

        checks.same("exit codes", (driver.returncode, second.returncode), (0, 0))
        play.check_work(checks.output("driver.out"))
        runs = {event["run"] for event in checks.events("started")}
        checks.same("runs of posse", len(runs), 2)
        gone = [bool(play.lost(executor)) for executor in (victim, vanished)]
        checks.same("those that went unseen are known as lost", gone, [True, True])
        poisoned = {line["executor"] for line in play.record("lost") if line["item"] == POISON}
        kept = before - {victim, vanished} - poisoned
        after = {line["executor"] for line in play.record("done") if line["time"] > away}
        checks.same("executors that worked on for the next run", kept <= after, True)
        checks.same("executors left behind", checks.processes(), [])


def delete_pod(kubeconfig, name):
    """As `kubectl delete pod --grace-period=0` does."""
    host = re.search(r"server: .https?://([0-9.:]+)", kubeconfig).group(1)
    api = http.client.HTTPConnection(host, timeout=10)
    api.request("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    assert api.getresponse().status == 200, name


def without_posse(what, words, **environment):
    """The driver says what is wrong and what to do, and ends."""
    with Checks("queue") as checks:
        driver = subprocess.run(
            [sys.executable, DRIVER, str(free_port())], cwd=ROOT, capture_output=True, text=True,
            timeout=60, env={**os.environ, **environment})
        said = {word: word in driver.stderr for word in words}
        checks.same(f"{what}: exit code, words", (driver.returncode, said), (1, dict.fromkeys(words, True)))


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    under_posse(seed)
    beside_posse(seed)
    without_posse("no posse is named", ["POSSE_CONTROL", "posse run"], POSSE_CONTROL="")
    without_posse("nobody answers", ["/nowhere", "is `posse run` there"], POSSE_CONTROL="unix:/nowhere")


main()
