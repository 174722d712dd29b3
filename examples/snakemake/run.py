"""Runs the workflow beside its own `posse`, and checks the sum.

    run.py [PARTS] [posse|cluster-generic]

PARTS (default 49): how many steps before the sum. Each is a Snakemake, and takes a second of processor time. The executor is posse's
plugin, or Snakemake's own one that calls `posse task`. A step is killed in the middle, and posse is killed and started again: it has
forgotten the tasks that had no pod yet, and the plugin, or Snakemake's `--retries`, adds them again. No step may run twice at once.
Exit code 77: Snakemake is missing.
"""

import importlib.util
import signal
import sys
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, listens, posse_binary

KILLED, SECONDS_MAX = "3", 600


def write_snakefile(checks):
    """The example's, whose parts tell when they begin and end. One of them waits for a file."""
    text, plain = (ROOT / "examples/snakemake/Snakefile").read_text(), "echo {wildcards.i} > {output}"
    assert plain in text
    log, go = checks.folder / "log", checks.folder / "go"
    told = f"echo begin {{wildcards.i}} $POSSE_EXECUTOR_ID >>{log}; test {{wildcards.i}} != {KILLED} || until test -e {go}; do sleep 0.1; done"
    (checks.folder / "Snakefile").write_text(text.replace(plain, f"{told}; {plain}; echo end {{wildcards.i}} >>{log}"))
    return log, go


def generic():
    """What README.md says. Snakemake submits again what a killed posse has forgotten."""
    return [
        "--cluster-generic-submit-cmd", f"{posse_binary()} task add --retries 1 -- sh",
        "--cluster-generic-status-cmd", str(ROOT / "examples/snakemake/status.sh"),
        "--cluster-generic-cancel-cmd", f"{posse_binary()} task cancel", "--retries", "1"]


def main():
    parts = int(sys.argv[1]) if len(sys.argv) > 1 else 49
    executor = sys.argv[2] if len(sys.argv) > 2 else "posse"
    words = {"posse": lambda: ["--posse-retries", "1"], "cluster-generic": generic}[executor]()
    if not importlib.util.find_spec("snakemake"):
        sys.exit(77)
    with Checks("snakemake", SECONDS_MAX) as checks:
        log, go = write_snakefile(checks)
        cluster, control = checks.start_cluster(), checks.folder / "control"
        first = checks.start_queue("posse", cluster)
        checks.until("posse", lambda: listens(control))
        start_flow = lambda name: checks.start(
            # Without --rerun-incomplete a Snakemake that follows a killed one refuses to begin if a step ended in between.
            name, sys.executable, "-m", "snakemake", "--nolock", "--rerun-incomplete", "--executor", executor, *words, "--jobs", "200",
            "--config", f"parts={parts}", "--seconds-between-status-checks", "1", cwd=checks.folder,
            POSSE_CONTROL=f"unix:{control}", POSSE_EXE=posse_binary(), POSSE_APP="flow", PYTHONPATH=str(ROOT / "clients/python"))
        lines = lambda: [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        begun = lambda: [line[2] for line in lines() if line[:2] == ["begin", KILLED]]
        flow = start_flow("flow")
        [killed] = checks.until("the step to kill", begun)
        checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={killed}")
        checks.until("its loss", lambda: checks.events("executor_lost"))
        if executor == "posse":
            checks.until("its next attempt", lambda: len(begun()) == 2)
            flow.kill()
            flow.wait()
            flow = start_flow("flow-again")
            # The attempt waits for `go`, so a second one beside it would be seen.
            checks.until("it to be found", lambda: len(begun()) > 2 or f"part:i={KILLED} is the task" in checks.output("flow-again.err"))
        go.touch()
        checks.until("an eighth of the steps", lambda: sum(line[0] == "end" for line in lines()) >= parts // 8)
        first.kill()
        first.wait()
        second = checks.start_queue("posse-again", cluster)
        checks.until("the end of the workflow", lambda: flow.poll() is not None)
        checks.same("exit code", flow.returncode, 0)
        checks.same("the sum", (checks.folder / "out/sum.txt").read_text(), f"{sum(range(1, parts + 1))}\n")
        second.terminate()
        checks.until("posse's end", lambda: second.poll() is not None)
        checks.same("runs of posse", len({event["run"] for event in checks.events("started")}), 2)
        stories = defaultdict(list)
        for what, part, *_ in lines():
            stories[part].append(what)
        checks.same("steps", len(stories), parts)
        # Its first attempt was killed, and wrote no end.
        checks.same("the killed step", stories.pop(KILLED), ["begin", "begin", "end"])
        # What ended while no Snakemake looked may run again, afterwards.
        in_turn = [story for story in stories.values() if story == ["begin", "end"] * (len(story) // 2)]
        checks.same("the others never ran twice at once", len(in_turn), parts - 1)
        checks.same("steps left behind", checks.processes(), [])


main()
