"""Runs the example with its own `posse` and counts the beginnings of its ranks: without a loss each begins once; if an
executor is killed in the middle of the sum, the whole sum begins once more; if a rank fails by itself, nothing begins again.

Exit code 77: there is no Open MPI.
"""

import contextlib
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import Checks, posse_binary

N, RANKS = 10_000_000, 4
SUM = (N - 1) * N * (2 * N - 1) // 6
# Each rank tells that it begins, and waits until a file is there.
BEGINS = """import os, time
if rank := os.environ.get("OMPI_COMM_WORLD_RANK"):
    with open("{0}/begun", "a") as log:
        print(rank, file=log)
    while not os.path.exists("{0}/go"):
        time.sleep(0.1)
    {1}
"""


def start(checks, then="pass"):
    """Starts the example. Returns its process when all ranks have begun."""
    (checks.folder / "sitecustomize.py").write_text(BEGINS.format(checks.folder, then))
    configuration = checks.configuration(("dev: {env: {", f"dev: {{env: {{PYTHONPATH: {checks.folder}, "))
    run = checks.start("posse", posse_binary(), "run", "--dev", "-f", configuration,
                       "--instance", checks.instance, "--events", str(checks.folder / "events"))
    checks.until("all ranks", lambda: len(begun(checks)) == RANKS)
    return run


def begun(checks):
    log = checks.folder / "begun"
    return log.read_text().split() if log.exists() else []


def check(checks, run, code, times, losses):
    """Lets the ranks work, and compares the end: the exit code, how often each rank began, losses that count."""
    (checks.folder / "go").touch()
    run.wait(checks.seconds_max)
    for folder in Path("/tmp").glob(f"mpi-{checks.instance}-exec-*"):
        shutil.rmtree(folder, ignore_errors=True)
    checks.same("exit code", run.returncode, code)
    checks.same("beginnings", Counter(begun(checks)), Counter({str(rank): times for rank in range(RANKS)}))
    result = [f"ranks {RANKS} executors {RANKS} sum {SUM}"] * (code == 0)
    checks.same("what the driver says", checks.output("posse.out").splitlines(), ["begin"] * times + result)
    reasons = [event["reason"] for event in checks.events("executor_lost")]
    checks.same("losses that count", [why for why in reasons if why == "app_error"], losses)


def kill(checks, executor):
    for pid in checks.processes(f"POSSE_EXECUTOR_ID={executor}"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
                os.kill(pid, signal.SIGKILL)


def main():
    if not shutil.which("mpirun"):
        sys.exit(77)
    with Checks("mpi") as checks:
        check(checks, start(checks), 0, 1, [])
    with Checks("mpi") as checks:
        run = start(checks)
        kill(checks, 2)
        checks.until("its loss", lambda: checks.events("executor_lost"))
        check(checks, run, 0, 2, ["app_error"])
    with Checks("mpi") as checks:
        check(checks, start(checks, then="os._exit(3)"), 1, 1, [])


main()
