"""Writes projects with `posse init --for KIND`, runs each on an embedded cluster, and checks what it prints.

Then the project has five tasks that write down each beginning. Without a loss each of them begins once; if a worker is
killed with -9 in the middle of its task, this one begins once more. Of the job, a command whose worker is ended by posse
three times still succeeds, and in a cluster a command that fails makes no other one begin again.

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
from checks import LOOPBACK, ROOT, Checks, posse_binary

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


def write(kind, checks, change):
    """Writes the project, with some words replaced. Returns its folder and the file with the beginnings."""
    folder, log = checks.folder / kind, checks.folder / "log"
    subprocess.run([posse_binary(), "init", "--for", kind, str(folder)], check=True, timeout=RUN_SECONDS_MAX)
    for name, old, new in change:
        text = (folder / name).read_text()
        assert text.count(old) == 1, (name, old)
        (folder / name).write_text(text.replace(old, new.replace("LOG", str(log))))
    return folder, log


def begun(log):
    return log.read_text().splitlines() if log.exists() else []


def crash(checks, executor):
    checks.signal(signal.SIGKILL, f"POSSE_EXECUTOR_ID={executor}")


def evict(checks, executor):
    """It is lost, and not by its own fault."""
    words = ["kill", "--control", f"unix:{checks.folder / 'control'}", "--force", executor]
    subprocess.run([posse_binary(), *words], check=True, timeout=RUN_SECONDS_MAX)


def run(kind, checks, path, last_line, change=(), ends=()):
    """`ends`: what ends the worker of the task that began first, each time that it begins."""
    folder, log = write(kind, checks, change)
    control = ["--control", f"unix:{checks.folder / 'control'}"]
    posse = checks.start("posse", os.path.abspath(posse_binary()), "run", "--dev", "--instance", checks.instance, *control,
                         cwd=folder, PATH=path, JAVA_TOOL_OPTIONS=JAVA_QUICK)
    others_reach, n_ended, end = set(), 0, time.monotonic() + RUN_SECONDS_MAX
    while posse.poll() is None and time.monotonic() < end:
        others_reach.update(checks.beyond_loopback())
        held = [line.split() for line in begun(log)]
        of_first = [executor for task, executor in held if task == held[0][0]]
        if n_ended < min(len(of_first), len(ends)):
            ends[n_ended](checks, of_first[n_ended])
            n_ended += 1
        time.sleep(0.1)
    checks.same(kind, (posse.returncode, checks.output("posse.out").splitlines()[-1:]), (0, [last_line]))
    if change:
        lines = begun(log)
        want = Counter("12345") + Counter(lines[0].split()[0] * len(ends))
        checks.same("beginnings", Counter(line.split()[0] for line in lines), want)
    checks.same("ports that other machines reach", sorted(others_reach), [])
    checks.same("executors left behind", checks.processes(), [])


def submit_job():
    with Checks("projects") as checks:
        cluster = checks.start_cluster()
        commands = "".join(f"echo {n} >>LOG\n" for n in range(1, 5)) + "echo 5 >>LOG; false\n"
        folder, log = write("job", checks, [("tasks.txt", "# One", f"{commands}# One"), *host("127.0.0.1")])
        files = [word for name in os.listdir(folder) if name != "posse.yaml" for word in ("--file", name)]
        posse = checks.start("submit", os.path.abspath(posse_binary()), "submit", *files, "--create-rbac", "--logs",
                             "--kubeconfig", cluster, cwd=folder)
        code = posse.wait(RUN_SECONDS_MAX)
        checks.same("the job", (code, "8 of 9 commands succeeded" in checks.output("submit.out")), (1, True))
        checks.same("beginnings", Counter(begun(log)), Counter("1234555"))


def host(address):
    """The driver's, in place of that of its pod."""
    return [("posse.yaml", "\ndriver:\n", f'\ndriver:\n  host: "{address}"\n')]


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
    # Where a worker is lost, the driver listens for IPv6.
    for more, ends in [([], []), (host(LOOPBACK), [crash]), *([([], [evict] * 3)] if kind == "job" else [])]:
        with Checks("projects") as checks:
            run(kind, checks, path, last_line, [*change, *more], ends)
    if kind == "job":
        submit_job()
    return True


sys.exit(0 if all([check(kind) for kind in sys.argv[1:]]) else CANNOT)
