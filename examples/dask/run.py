"""Runs the example under its own `posse run --dev` and checks the results.

    run.py [SEED]       SEED (default 1): which worker is killed, and which ones hold results

Then the scheduler is started without posse, with a wrong token, and with servers that are not this posse.
run.sh installs the requirements and starts this program.
"""

import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import dask
import dask.array as da
import numpy as np
from distributed import Client
from distributed.security import Security

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, at, free_port, posse_binary

N, BLOCK = 1_500, 250
DASK = str(Path(sys.executable).parent / "dask")
HELD_BYTES = {"most": 16 << 20, "some": 8 << 20}


def matrix(xp, prime, **chunks):
    """Integers below 1,009: float64 adds up their products exactly."""
    i = xp.arange(N * N, **chunks).reshape(N, N)
    return (i * prime + i // 13) % 1_009


def with_dask(prime):
    x = matrix(da, prime, chunks=N * BLOCK).rechunk(BLOCK)
    product = x @ x.T
    return (product % 9_973).sum(axis=1), product.max(axis=0), product[::7, ::11]


def with_numpy(prime):
    x = matrix(np, prime).astype(np.float64)
    product = (x @ x.T).astype(np.int64)
    return (product % 9_973).sum(axis=1), product.max(axis=0), product[::7, ::11]


def hold(name, n_bytes, made, go):
    """Returns a result of so many bytes, once the file `go` is there. Adds a line to `made` at each computation."""
    with open(made, "a") as file:
        print(name, file=file)
    while not os.path.exists(go):
        time.sleep(0.1)
    return np.full(n_bytes // 8, n_bytes)


class Play:
    def __init__(self, checks, seed):
        self.checks, self.seeded = checks, random.Random(seed)
        port, keys = free_port(), checks.folder / "tls"
        configuration = checks.configuration(
            ("8786", port), ("target/dask/tls", keys), ("target/dask/bin/dask", DASK), ("timeout: 60s", "timeout: 20s"))
        self.posse = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", configuration,
            "--instance", checks.instance, "--events", str(checks.folder / "events"),
            OMP_NUM_THREADS="1", DASK_DISTRIBUTED__ADAPTIVE__TARGET_DURATION="200ms",
        )
        self.until = checks.until
        self.until("the key", lambda: (keys / "cert.pem").exists())
        key, cert = str(keys / "key.pem"), str(keys / "cert.pem")
        tls = Security(tls_ca_file=cert, tls_client_key=key, tls_client_cert=cert, require_encryption=True)
        self.client = Client(f"tls://127.0.0.1:{port}", timeout=60, security=tls)
        self.port = port
        self.work = []

    def check_ports(self):
        self.checks.same("ports that other machines reach", self.checks.beyond_loopback(), [])

    def check_strangers(self):
        for address in (f"127.0.0.1:{self.port}", *self.workers().values()):
            self.checks.same("without the key", is_admitted(address), False)

    def workers(self):
        """Executor id -> address of each worker that the scheduler has."""
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        return {int(worker["name"]): address for address, worker in found.items()}

    def registered(self):
        """The start times of the workers by address, in seconds since 1970."""
        events = self.client.get_events("all")
        return {e["worker"]: when for when, e in events if e["action"] == "add-worker"}

    def is_busy(self):
        """Starts another computation when the last one is done."""
        if not self.work or all(future.done() for future in self.work[-1][1]):
            prime = 7_919 + 2 * len(self.work)
            self.work.append((prime, self.client.compute(with_dask(prime))))
        return True

    def to_six(self):
        six = self.until("six workers", lambda: self.is_busy() and len(w := self.workers()) == 6 and w)
        target = next(e for e in self.checks.events("target_changed") if e["target"] == 6)
        seconds = max(self.registered()[address] for address in six.values()) - at(target)
        self.checks.say(f"target 6 -> the sixth worker registered: {seconds:.2f} s")
        return six

    def kill_one(self, six):
        pids = self.client.run(os.getpid)
        victim = self.seeded.choice(sorted(six))
        self.until("the victim works",
                   lambda: self.is_busy() and len(self.client.processing()[six[victim]]) > 0)
        os.kill(pids[six[victim]], signal.SIGKILL)
        loss = self.until("its loss", lambda: self.is_busy() and self.checks.events("executor_lost"))[0]
        now = self.until("a successor",
                         lambda: self.is_busy() and len(w := self.workers()) == 6 and victim not in w and w)
        seconds = self.registered()[now[max(now)]] - at(loss)
        self.checks.say(f"worker lost -> its successor registered: {seconds:.2f} s")
        same = self.checks.same
        same("the loss", (loss["executor"], loss["reason"], loss["exit_code"]), (victim, "app_error", 137))
        same("the workers then", sorted(now), sorted({*six, max(six) + 1} - {victim}))
        same("it was in the middle of something", self.removed(six[victim])["processing-tasks"] != set(), True)
        return now

    def removed(self, address):
        events = [event for _, event in self.client.get_events("all")]
        return next(e for e in events if e["action"] == "remove-worker" and e["worker"] == address)

    def check_work(self):
        """Checks all results."""
        for prime, futures in self.work:
            self.until("all that was computed", lambda: all(future.done() for future in futures))
            got = self.client.gather(list(futures))
            are_same = [np.array_equal(one, other) for one, other in zip(got, with_numpy(prime))]
            self.checks.same(f"product of {N} x {N}, as NumPy has it, bit by bit", are_same, [True] * 3)

    def to_one(self, now):
        """Two workers each hold the only copy of a result; the one with more data must stay."""
        most, some = self.seeded.sample(sorted(now), 2)
        path, go = self.checks.folder / "made", self.checks.folder / "go"
        # With another one under way no worker is idle, and none is retired, until both have begun.
        self.until("a whole product", lambda: self.is_busy() and len(self.work) > 1)
        held = [
            self.client.submit(hold, name, HELD_BYTES[name], str(path), str(go), workers=[now[worker]], key=name, priority=1)
            for name, worker in [("most", most), ("some", some)]
        ]
        self.until("both to begin", lambda: path.exists() and sorted(path.read_text().split()) == ["most", "some"])
        # On the two workers the rest of the product would wait for them.
        self.client.cancel(list(self.work.pop()[1]))
        # Dask ends idle workers first, so that on a slow machine the last ones of the product would stay.
        self.until("two workers", lambda: sorted(self.workers()) == sorted([most, some]))
        go.touch()
        self.until("both results", lambda: all(future.status == "finished" for future in held))
        self.until("one worker", lambda: len(self.workers()) == 1)
        same, events = self.checks.same, self.checks.events
        killed = [event for event in events("executor_lost") if event["reason"] == "killed"]
        same("retired, then killed", sorted(e["executor"] for e in killed), sorted({*now} - {most}))
        same("the worker that stays", sorted(self.workers()), [most])
        same("the target", events("target_changed")[-1]["target"], 1)
        sizes = {future.key: future.result(timeout=60).nbytes for future in held}
        same("results held by one worker each", sizes, HELD_BYTES)
        same("how often they were made", sorted(path.read_text().split()), ["most", "some"])
        retired = [self.removed(now[worker]) for worker in now if worker != most]
        same("results lost with them", [e["lost-computed-tasks"] for e in retired], [set()] * 5)
        return most

    def silence(self, worker):
        """The last worker hangs, which only its missing heartbeats show."""
        [pid] = self.client.run(os.getpid).values()
        os.kill(pid, signal.SIGSTOP)
        loss = self.until("its loss", lambda: [
            e for e in self.checks.events("executor_lost") if e["reason"] == "heartbeat_timeout"])[0]
        os.kill(pid, signal.SIGKILL)
        self.until("another one", lambda: len(w := self.workers()) == 1 and worker not in w)
        self.checks.same("lost for its silence", loss["executor"], worker)

    def end(self):
        self.posse.terminate()
        self.client.close(timeout=1)
        self.until("the end", lambda: self.posse.poll() is not None)
        self.checks.same("exit code", self.posse.returncode, 0)
        losses = [event["executor"] for event in self.checks.events("executor_lost")]
        self.checks.same("losses told once", len(losses), len(set(losses)))
        self.checks.same("workers left behind", self.checks.processes(), [])
        # Dask logs each call, also one that retires nobody: the preload must not make one each second.
        retired = re.findall(r"Retire worker addresses .*", self.checks.output("posse.err"))
        nobody = [line for line in retired if line.endswith("[]")]
        self.checks.same("lines about retired workers, of nobody", (bool(retired), nobody), (True, []))


def is_admitted(address):
    """True if a scheduler or a worker talks to a program without the run's key, with TLS or without."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.removeprefix("tls://").split(":")
    for wrap in (lambda plain: plain, context.wrap_socket):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as plain, wrap(plain) as stream:
            if stream.recv(1):  # Dask speaks first
                return True
    return False


class NotPosse(BaseHTTPRequestHandler):
    """Answers like an older posse, or like another program."""

    def do_GET(self):
        code, text = self.server.answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    log_message = lambda *_: None


def without_posse(what, words, address, token_file=""):
    """The scheduler reports the problem and a remedy, and ends."""
    with Checks("dask") as checks:
        scheduler = subprocess.run(
            [DASK, "scheduler", "--port", str(free_port()), "--no-dashboard",
             "--preload", "posse.dask"],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": "clients/python", "POSSE_CONTROL": address,
                 "POSSE_CONTROL_TOKEN_FILE": token_file})
        said = {word: word in scheduler.stderr for word in words}
        checks.same(f"{what}: exit code, words", (scheduler.returncode, said), (1, dict.fromkeys(words, True)))


def beside_another(what, words, *answer):
    with HTTPServer(("127.0.0.1", 0), NotPosse) as server:
        server.answer = answer
        Thread(target=server.serve_forever, daemon=True).start()
        without_posse(what, words, f"127.0.0.1:{server.server_port}")
        server.shutdown()


def with_a_wrong_token():
    with Checks("dask") as checks:
        token, wrong = checks.folder / "token", checks.folder / "wrong"
        for path, text in [(token, "right"), (wrong, "wrong")]:
            path.write_text(text * 8)
            path.chmod(0o600)
        control = f"127.0.0.1:{free_port()}"
        command = re.search(r"\ndriver:\n(  .*\n)+", (ROOT / "examples/dask/posse.yaml").read_text())[0]
        checks.start("posse", posse_binary(), "run", "--dev", "-f", checks.configuration((command, "")),
                     "--executors", "1", "--instance", checks.instance,
                     "--events", str(checks.folder / "events"),
                     "--control", control, "--control-token-file", str(token))
        checks.until("posse", lambda: checks.events("started"))
        without_posse("a wrong token", ["401", "--control-token-file"], control, str(wrong))


def outlived():
    """Dask's workers end with the connection to their scheduler. If that changes, say so in README.md."""
    with Checks("dask") as checks:
        port = str(free_port())
        words = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--host", "127.0.0.1"]
        scheduler = checks.start("scheduler", DASK, "scheduler", "--port", port, *words)
        worker = checks.start("worker", DASK, "worker", f"127.0.0.1:{port}", "--no-nanny", *words)
        checks.until("a worker", lambda: "Registered to" in checks.output("worker.err"))
        scheduler.kill()
        checks.until("its end", lambda: worker.poll() is not None)
        checks.same("without its scheduler: exit code", worker.returncode, 0)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with Checks("dask") as checks, dask.config.set({"array.slicing.split-large-chunks": False}):
        play = Play(checks, seed)
        six = play.kill_one(play.to_six())
        play.check_ports()
        last = play.to_one(six)
        play.check_strangers()
        play.check_work()
        play.silence(last)
        play.end()
    outlived()
    without_posse("no posse is named", ["POSSE_CONTROL", "posse run"], "")
    without_posse("nobody answers", ["/nowhere", "is `posse run` there"], "unix:/nowhere")
    without_posse("no token file", ["POSSE_CONTROL_TOKEN_FILE", "/nowhere"], "127.0.0.1:1", "/nowhere")
    with_a_wrong_token()
    beside_another("an older posse", ["404", "no such call", "too old"], 404,
                   '{"error":"there is no such call"}')
    beside_another("no posse at all", ["not posse's", "POSSE_CONTROL"], 200, "<html>")


main()
