"""Writes projects with `posse init --for KIND`, runs each on an embedded cluster, and checks what it prints.

Then the project has five tasks that write down each beginning. Without a loss each of them begins once; if a worker is
killed with -9 in the middle of its task, this one begins once more.

    run.py KIND...     dask needs target/dask (examples/dask/run.sh installs it), spark needs target/spark
                       (examples/spark/run.sh); exit code 77: a kind is not installed
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import ROOT, Checks, posse_binary

CANNOT = 77
# Spark starts five JVMs, each of which takes half a minute on a busy machine.
RUN_SECONDS_MAX = 600
# The JVMs end before an optimising compiler is of use.
JAVA_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SQUARES = "sum of squares: 338350"
PROJECTS = {  # the last line on stdout, and where its programs are
    "python": (SQUARES, None),
    "shell": ("sum of squares: 9455", None),
    "job": ("4 of 4 commands succeeded", None),
    "dask": (SQUARES, "dask/bin"),
    "spark": (SQUARES, "spark/*/venv/bin"),
}
# Long enough that a worker without a task asks several times for one.
TASK_SECONDS = 2
# A beginning is a line with the task and its executor.
IN_SHELL = f'echo "%s $POSSE_EXECUTOR_ID" >>LOG; sleep {TASK_SECONDS}'
IN_PYTHON = ("print(%s, __import__('os').environ['POSSE_EXECUTOR_ID'], file=open('LOG', 'a'), flush=True),"
             f" __import__('time').sleep({TASK_SECONDS})")
FIVE = [("driver.py", "range(1, 101)", "range(1, 6)")]
COUNTED = {  # what is changed in its files, and the last line then
    "python": ([*FIVE, ("worker.py", "time.sleep(0.1)", IN_PYTHON % "task")], "sum of squares: 55"),
    "shell": ([("driver.sh", "n_tasks=30", "n_tasks=5"), ("worker.sh", "        echo $((", f"{IN_SHELL % '$n'}\necho $((")],
              "sum of squares: 55"),
    "job": ([("tasks.txt", "# One", "".join(f"{IN_SHELL % n}\n" for n in range(1, 6)) + "# One")], "9 of 9 commands succeeded"),
    "dask": ([*FIVE, ("driver.py", "    return n", f"    {IN_PYTHON % 'n'}\n    return n")], "sum of squares: 55"),
    "spark": ([("app.py", "range(1, 101)", "range(1, 6)"), ("app.py", "lambda n: ", f"lambda n: ({IN_PYTHON % 'n'}) and ")],
              "sum of squares: 55"),
}


def run(kind, checks, path, last_line, change=(), is_one_killed=False):
    folder, log = checks.folder / kind, checks.folder / "log"
    subprocess.run([posse_binary(), "init", "--for", kind, str(folder)], check=True, timeout=RUN_SECONDS_MAX)
    for name, old, new in change:
        text = (folder / name).read_text()
        assert text.count(old) == 1, (name, old)
        (folder / name).write_text(text.replace(old, new.replace("LOG", str(log))))
    posse = checks.start("posse", os.path.abspath(posse_binary()), "run", "--dev", "--instance", checks.instance, cwd=folder,
                         PATH=path, JAVA_TOOL_OPTIONS=JAVA_QUICK)
    begun = lambda: log.read_text().splitlines() if log.exists() else []
    others_reach, killed, end = set(), None, time.monotonic() + RUN_SECONDS_MAX
    while posse.poll() is None and time.monotonic() < end:
        others_reach.update(checks.beyond_loopback())
        if is_one_killed and not killed and begun():
            killed, executor = begun()[0].split()
            checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={executor}")
        time.sleep(0.1)
    checks.same(kind, (posse.returncode, checks.output("posse.out").splitlines()[-1:]), (0, [last_line]))
    if change:
        beginnings = Counter(line.split()[0] for line in begun())
        checks.same("beginnings", dict(beginnings), {str(n): 1 + (str(n) == killed) for n in range(1, 6)})
    checks.same("ports that other machines reach", sorted(others_reach), [])
    checks.same("executors left behind", checks.processes(), [])


def check(kind):
    last_line, programs = PROJECTS[kind]
    path = os.environ["PATH"]
    if programs:
        installed = sorted((ROOT / "target").glob(programs))
        if not installed:
            print(f"projects: NOT TESTED: {kind}: there is no target/{programs}", file=sys.stderr)
            return False
        path = f"{installed[-1]}:{path}"
    with Checks("projects") as checks:
        run(kind, checks, path, last_line)
    change, last_line = COUNTED[kind]
    for is_one_killed in (False, True):
        with Checks("projects") as checks:
            run(kind, checks, path, last_line, change, is_one_killed)
    return True


sys.exit(0 if all([check(kind) for kind in sys.argv[1:]]) else CANNOT)
