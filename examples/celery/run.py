"""Runs the example with its own `posse`, kills a worker with a task, and checks the results.

Exit code 77: Celery, its client of Redis, or Redis is missing.
"""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import LOOPBACK, Checks, free_port, posse_binary


def main():
    if not all(shutil.which(name) for name in ("celery", "redis-server", "redis-cli")):
        sys.exit(77)
    with Checks("celery") as checks:
        stay, log, port = checks.folder / "stay", checks.folder / "log", str(free_port())
        configuration = checks.configuration(
            ("6390", port), ("\ndriver:\n", f'\ndriver:\n  host: "{LOOPBACK}"\n'),
            ("    env:\n      - ", f"    env:\n      - {{name: LOG, value: {log}}}\n      - "))
        run = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", configuration, "--instance", checks.instance, "--events", str(checks.folder / "events"), STAY=str(stay))
        targets = lambda: [event["target"] for event in checks.events("target_changed")]
        checks.until("four workers", lambda: len(checks.events("executor_running")) >= 4)
        checks.same("ports that other machines reach", checks.beyond_loopback(), [])
        stranger = subprocess.run(["redis-cli", "-p", port, "llen", "celery"], capture_output=True, text=True)
        checks.same("Redis without its password", stranger.stdout.split()[:1], ["NOAUTH"])
        # The line that is written just now may not be whole.
        begun = lambda: log.exists() and log.read_text().split("\n")[:-1]
        executor = checks.until("a task", begun)[-1].split()[1]
        checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={executor}")
        held = [line.split()[0] for line in log.read_text().splitlines() if line.split()[1] == executor][-1]
        checks.until("the sum", lambda: checks.output("posse.out"))
        checks.same("the sum", checks.output("posse.out").split()[:2], ["sum", str(sum(n * n for n in range(60)))])
        checks.until("one worker again", lambda: targets()[-1:] == [1])
        stay.touch()
        checks.until("the end of the run", lambda: run.poll() is not None)
        checks.same("targets", (max(targets()), targets()[-1]), (4, 1))
        checks.same("lost", [event["executor"] for event in checks.events("executor_lost")], [int(executor)])
        beginnings = Counter(line.split()[0] for line in log.read_text().splitlines())
        checks.same("beginnings", beginnings, Counter({str(n): 1 + (str(n) == held) for n in range(60)}))


main()
