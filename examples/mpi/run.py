"""Runs the example with its own `posse`, kills an executor in the middle of the sum, and checks the result.

Exit code 77: there is no Open MPI.
"""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import Checks, posse_binary

N = 10_000_000
SUM = (N - 1) * N * (2 * N - 1) // 6


def main():
    if not shutil.which("mpirun"):
        sys.exit(77)
    with Checks("mpi") as checks:
        # Each rank begins when a file is there, which comes when the executor is gone.
        go = checks.folder / "go"
        (checks.folder / "sitecustomize.py").write_text(
            f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.1)\n")
        waits = checks.configuration(("dev: {env: {", f"dev: {{env: {{PYTHONPATH: {checks.folder}, "))
        run = checks.start("posse", posse_binary(), "run", "--dev", "-f", waits,
                           "--instance", checks.instance, "--events", str(checks.folder / "events"))
        checks.until("a rank in executor 2", lambda: checks.processes(
            "POSSE_EXECUTOR_ID=2", "OMPI_COMM_WORLD_SIZE=4"))
        for pid in checks.processes("POSSE_EXECUTOR_ID=2"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
                    os.kill(pid, signal.SIGKILL)
        checks.until("its loss", lambda: checks.events("executor_lost"))
        go.touch()
        checks.until("the end of the run", lambda: run.poll() is not None)
        lines = checks.output("posse.out").splitlines()
        checks.same("the result", lines[-1:], [f"ranks 4 executors 4 sum {SUM}"])
        checks.same("mpirun began again", "begin again" in lines, True)
        for folder in Path("/tmp").glob(f"mpi-{checks.instance}-exec-*"):
            shutil.rmtree(folder, ignore_errors=True)
        reasons = sorted(event["reason"] for event in checks.events("executor_lost"))
        checks.same("losses that count", [why for why in reasons if why == "app_error"], ["app_error"])


main()
