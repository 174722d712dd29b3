"""Submits the example to an embedded cluster, deletes the driver's pod, kills an executor, and checks what was done."""

import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import Checks, delete_pod, json_lines


def main():
    with Checks("kept") as checks:
        cluster, until, same = checks.start_cluster(), checks.until, checks.same
        checks.submit(cluster)

        def said(pod, what):
            return [line for line in json_lines(checks.folder / pod) if line["what"] == what]

        first = until("the driver", lambda: checks.driver(cluster))["pod"]
        until("eight parts", lambda: len(said(first, "begun")) >= 8)
        delete_pod(cluster, first)
        driver = until("the next driver", lambda: checks.driver(cluster, other_than=first))
        second, checks.instance = driver["pod"], driver["instance"]
        begun = until("a part", lambda: said(second, "begun"))[0]
        checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={begun['executor']}")
        [end] = until("the end", lambda: said(second, "end"))
        until("the end of the application", lambda: not checks.driver(cluster))
        until("no executor left behind", lambda: not checks.processes())

        same("the sum", end["sum"], sum(n * n for n in range(30)))
        same("adopted", [line["executors"] for line in said(second, "adopted")], [[1, 2, 3]])
        beginnings = Counter(line["part"] for pod in (first, second) for line in said(pod, "begun"))
        same("beginnings", beginnings, Counter(range(30)) + Counter([begun["part"]]))


main()
