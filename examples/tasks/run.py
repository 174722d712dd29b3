"""Runs the example with its own `posse`, kills a task, and checks the sum."""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, posse_binary

KILLED = "emma-01-02"


def main():
    with Checks("tasks") as checks:
        # The task to kill waits for a file, which comes when its first executor is gone.
        go, waits = checks.folder / "go", "set -e; "
        begun = checks.folder / "begun"
        slow = f'set -e; echo "$POSSE_KEY" >>{begun}; test "$POSSE_KEY" != {KILLED} || until test -e {go}; do sleep 0.1; done; '
        run = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", checks.configuration((waits, slow)),
            "--instance", checks.instance, "--events", str(checks.folder / "events"), OUT=str(checks.folder))
        (pid, *_) = checks.until("the task to kill", lambda: checks.processes(f"POSSE_KEY={KILLED}"))
        os.kill(pid, signal.SIGKILL)
        checks.until("its loss", lambda: checks.events("executor_lost"))
        go.touch()
        checks.until("the end of the run", lambda: run.poll() is not None)
        checks.same("exit code", run.returncode, 0)
        texts = sorted((ROOT / "fixtures/text").glob("*.txt"))
        words = sum(len(text.read_text().split()) for text in texts)
        checks.same("the sum", checks.output("posse.out").split(), ["words", str(words)])
        ended = {event["key"]: event["attempts"] for event in checks.events("task_ended")}
        checks.same("beginnings", Counter(begun.read_text().split()), Counter({text.stem: 1 + (text.stem == KILLED) for text in texts}))
        checks.same("attempts", ended, {text.stem: 1 + (text.stem == KILLED) for text in texts})


main()
