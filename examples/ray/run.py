"""Runs the example with its own `posse`, and counts the beginnings of the job's tasks: without a loss each begins once; if a
node is killed in the middle of a task, this one begins once more.

Exit code 77: Ray is not installed.
"""

import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, free_port, posse_binary

SUM = sum(n * n for n in range(30))
# Ray starts slowly, and there are five of it.
SECONDS_MAX = 600


def count(n_kills):
    with Checks("ray", SECONDS_MAX) as checks:
        log, token = checks.folder / "log", checks.folder / "token"
        # Ray gives its workers the ports below.
        port = next(port for port in iter(free_port, None) if port >= 20_000)
        run = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f",
            checks.configuration(("6379", port), (">{{DIR}}/token", f">{{{{DIR}}}}/token; cp {{{{DIR}}}}/token {token}")),
            "--instance", checks.instance, "--events", str(checks.folder / "events"), PYTHONPATH=str(ROOT / "clients/python"),
            RAY_USAGE_STATS_ENABLED="0")
        checks.until("a node", lambda: checks.events("executor_running"))
        host = re.search(r"Local node IP: (\S+)", checks.output("posse.out"))[1]
        job = checks.start("job", sys.executable, "examples/ray/job.py", f"{host}:{port}", LOG=str(log),
                           RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
        begun = lambda: log.read_text().splitlines() if log.exists() else []
        again = []
        for _ in range(n_kills):
            checks.until("eight tasks", lambda: len(begun()) >= 8)
            executor = begun()[-1].split()[1]
            checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={executor}")
            again.append([line.split()[0] for line in begun() if line.split()[1] == executor][-1])
        checks.until("the end of the job", lambda: job.poll() is not None)
        # Ray's own lines may follow.
        sums = [line for line in checks.output("job.out").splitlines() if line.startswith("sum")]
        checks.same("the sum", sums, [f"sum of squares: {SUM}"])
        checks.same("beginnings", Counter(line.split()[0] for line in begun()), Counter([*map(str, range(30)), *again]))
        checks.same("nodes lost by their own fault",
                    [event["reason"] for event in checks.events("executor_lost") if event["caused_by_app"]], ["app_error"] * n_kills)
        run.terminate()
        checks.until("posse's end", lambda: run.poll() is not None)


if not shutil.which("ray"):
    sys.exit(77)
count(0)
count(1)
