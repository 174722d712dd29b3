"""Writes projects with `posse init --for KIND`, runs each on an embedded cluster, and checks what it prints.

    run.py KIND...     dask needs target/dask (examples/dask/run.sh installs it), spark needs target/spark
                       (examples/spark/run.sh); exit code 77: a kind is not installed
"""

import os
import subprocess
import sys
import time
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


def check(kind):
    last_line, programs = PROJECTS[kind]
    path = os.environ["PATH"]
    if programs:
        installed = sorted((ROOT / "target").glob(programs))
        if not installed:
            print(f"projects: NOT TESTED: {kind}: there is no target/{programs}", file=sys.stderr)
            return False
        path = f"{installed[-1]}:{path}"
    posse = os.path.abspath(posse_binary())
    with Checks("projects") as checks:
        folder = checks.folder / kind
        subprocess.run([posse, "init", "--for", kind, str(folder)], check=True, timeout=RUN_SECONDS_MAX)
        run = checks.start("posse", posse, "run", "--dev", "--instance", checks.instance, cwd=folder, PATH=path,
                           JAVA_TOOL_OPTIONS=JAVA_QUICK)
        others_reach, end = set(), time.monotonic() + RUN_SECONDS_MAX
        while run.poll() is None and time.monotonic() < end:
            others_reach.update(checks.beyond_loopback())
            time.sleep(0.1)
        checks.same(kind, (run.returncode, checks.output("posse.out").splitlines()[-1:]), (0, [last_line]))
        checks.same("ports that other machines reach", sorted(others_reach), [])
        checks.same("executors left behind", checks.processes(), [])
    return True


sys.exit(0 if all([check(kind) for kind in sys.argv[1:]]) else CANNOT)
