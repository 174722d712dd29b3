"""Runs the workflow beside its own `posse`, kills a block, kills posse and starts it again, and checks the sum.

Exit code 77: Parsl is missing.
"""

import importlib.util
import os
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import NODES, Checks, driver_host, listens

APPS = 199


def main():
    if not importlib.util.find_spec("parsl"):
        sys.exit(77)
    with Checks("parsl") as checks:
        log, cluster, control = checks.folder / "log", checks.start_cluster(), checks.folder / "control"
        first = checks.start_queue("posse", cluster)
        checks.until("posse", lambda: listens(control))
        flow = checks.start(
            "flow", sys.executable, "examples/parsl/flow.py", POSSE_CONTROL=f"unix:{control}", PYTHONPATH="clients/python",
            POSSE_DRIVER_HOST=driver_host(), LOG=str(log), RUN_DIR=str(checks.folder / "parsl"),
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # Parsl starts programs that it finds there.
        ends = lambda: log.read_text().count("end ") if log.exists() else 0
        checks.until("twenty apps", lambda: ends() >= 20)
        if not NODES:
            checks.same("ports that other machines reach", checks.beyond_loopback(), [])
        checks.process(1)
        checks.signal(signal.SIGKILL, "POSSE_EXECUTOR_ID=1")
        checks.until("its loss", lambda: checks.events("executor_lost"))
        first.kill()
        first.wait()
        second = checks.start_queue("posse-again", cluster)
        checks.until("the end of the workflow", lambda: flow.poll() is not None)
        checks.same("exit code, sum", (flow.returncode, checks.output("flow.out")), (0, f"sum {sum(n * n for n in range(APPS))}\n"))
        second.terminate()
        checks.until("posse's end", lambda: second.poll() is not None)
        checks.same("runs of posse", len({event["run"] for event in checks.events("started")}), 2)
        story = Counter(tuple(line.split()[:2]) for line in log.read_text().splitlines())
        checks.same("apps", len([app for app in story if app[0] == "end"]), APPS)
        # Parsl runs again what a lost block held: its two workers, and what they had fetched.
        again = [n for (what, n), times in story.items() if what == "begin" and times > 1]
        checks.same("apps that ended twice", [n for (what, n), times in story.items() if what == "end" and times > 1 and n not in again], [])
        checks.same("only the lost block's apps began again", len(again) <= 4, True)
        checks.same("blocks left behind", checks.processes(), [])


main()
