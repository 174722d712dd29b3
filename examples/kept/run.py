"""Counts the beginnings of each part: submitted, with the driver's pod deleted and an executor killed; and scaled down.

A driver that hears no more of losses ends. A stranger's message without an end does not keep it from its work.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import LOOPBACK, Checks, delete_pod, free_port, json_lines, posse_binary


def said(checks, log, what):
    return [line for line in json_lines(checks.folder / log) if line["what"] == what]


def check_work(checks, logs, ended):
    """The sum is right, and each part has begun once, that of the executor which ended twice."""
    [end] = said(checks, logs[-1], "end")
    checks.same("the sum", end["sum"], sum(n * n for n in range(30)))
    begun = [line for log in logs for line in said(checks, log, "begun")]
    again = [line["part"] for line in begun if line["executor"] == ended][-1:]
    checks.same("beginnings", Counter(line["part"] for line in begun), Counter(range(30)) + Counter(again))


def outlived():
    with Checks("kept") as checks:
        cluster, until = checks.start_cluster(), checks.until
        checks.submit(cluster)
        first = until("the driver", lambda: checks.driver(cluster))["pod"]
        until("eight parts", lambda: len(said(checks, first, "begun")) >= 8)
        delete_pod(cluster, first)
        driver = until("the next driver", lambda: checks.driver(cluster, other_than=first))
        second, checks.instance = driver["pod"], driver["instance"]
        begun = until("a part", lambda: said(checks, second, "begun"))[0]
        checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={begun['executor']}")
        until("the end", lambda: said(checks, second, "end"))
        until("the end of the application", lambda: not checks.driver(cluster))
        until("no executor left behind", lambda: not checks.processes())
        checks.same("adopted", [line["executors"] for line in said(checks, second, "adopted")], [[1, 2, 3]])
        check_work(checks, [first, second], begun["executor"])


def start(checks, port="auto"):
    # The address of a pod can be one of IPv6, too.
    configuration = checks.configuration(("  port: auto", f'  port: {port}\n  host: "{LOOPBACK}"'))
    posse = checks.start("posse", posse_binary(), "run", "--dev", "-f", configuration, "--instance", checks.instance,
                         "--events", str(checks.folder / "events"), "--control", f"unix:{checks.folder / 'control'}")
    checks.until("six parts", lambda: len(said(checks, "posse.out", "begun")) >= 6)
    return posse


def scaled():
    with Checks("kept") as checks:
        posse = start(checks)
        subprocess.run([posse_binary(), "scale", "--control", f"unix:{checks.folder / 'control'}", "2"], check=True)
        checks.until("the end", lambda: posse.poll() is not None)
        [deleted] = [event for event in checks.events("executor_deleted") if event["cause"] == "scaled_down"]
        check_work(checks, ["posse.out"], deleted["executor"])


def deaf():
    with Checks("kept") as checks:
        posse = start(checks)
        [events] = [pid for pid in checks.processes() if b"\0events\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(events, signal.SIGKILL)
        checks.same("exit code", posse.wait(checks.seconds_max), 1)
        checks.same("it says why", "events have ended" in checks.output("posse.err"), True)


def endless():
    with Checks("kept") as checks:
        start(checks, port := free_port())
        with socket.create_connection((LOOPBACK, port)) as stranger:
            stranger.sendall(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
            n_begun = len(said(checks, "posse.out", "begun"))

            def goes_on():
                with contextlib.suppress(OSError):  # the driver listens to it no more
                    stranger.send(b"x")
                return len(said(checks, "posse.out", "begun")) > n_begun + 3
            checks.until("parts beside a stranger", goes_on)


outlived()
scaled()
deaf()
endless()
