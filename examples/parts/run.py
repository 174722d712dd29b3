"""Runs the example with its own `posse`, and counts the beginnings of its parts: without a loss each begins once; if an
executor is killed in the middle of its part, this one begins once more."""

import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, posse_binary

TEXTS = sorted((ROOT / "fixtures/text").glob("*.txt"))


def count(*again):
    """`again`: the part whose first executor is killed."""
    with Checks("parts") as checks:
        # It waits for a file, which comes when its first executor is gone.
        begun, counted, go = (checks.folder / name for name in ("begun", "counted", "go"))
        slow = "".join(f"test $POSSE_SLOT != {part} || until test -e {go}; do sleep 0.1; done; " for part in again)
        configuration = checks.configuration(("'set -- ", f"'echo $POSSE_SLOT >>{begun}; {slow}set -- "),
                                             ('wc -w "$1"', f'wc -w "$1" >>{counted}'))
        run = checks.start("posse", posse_binary(), "run", "--dev", "-f", configuration,
                           "--instance", checks.instance, "--events", str(checks.folder / "events"))
        for part in again:
            checks.until("its beginning", lambda: begun.exists() and str(part) in begun.read_text().split())
            checks.signal(signal.SIGKILL, f"POSSE_SLOT={part}")
            checks.until("its loss", lambda: checks.events("executor_lost"))
        go.touch()
        run.wait(checks.seconds_max)
        checks.same("exit code", run.returncode, 0)
        parts = Counter(map(str, [*range(len(TEXTS)), *again]))
        checks.same("beginnings", Counter(begun.read_text().split()), parts)
        words = {line.split()[1]: int(line.split()[0]) for line in counted.read_text().splitlines()}
        checks.same("words", words, {str(text.relative_to(ROOT)): len(text.read_bytes().split()) for text in TEXTS})
        checks.same("parts done", len(checks.events("executor_completed")), len(TEXTS))
        checks.same("executors left behind", checks.processes(), [])


count()
count(4)
