"""An application that is looked at: its own metrics and its executors', beside posse's, while it works; then its history.

history.py run POSSE_METRICS: the application. It scrapes the three endpoints as Prometheus does.
history.py check EVENTS LOG SPARK_CLASS PORT [KEY=VALUE...]: Spark's HistoryServer, on this port and with these keys, must show the
finished application of the event log at the URL EVENTS. LOG gets what it says.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

SECONDS_MAX = 60
EXECUTORS = 2
NAME = "history"


def get(url):
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        return answer.read().decode()


def scrape(url, *wanted):
    """The lines of a scrape must be Prometheus' format, and match each wanted pattern."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        lines = [line for line in get(url).splitlines() if line and not line.startswith("#")]
        wrong = [line for line in lines if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? +[-+0-9.eENaInf]+", line)]
        missing = [pattern for pattern in wanted if not any(re.match(pattern, line) for line in lines)]
        if not wrong and not missing:
            print(f"history: {url}: {len(lines)} series", flush=True)
            return
        # The executors report by heartbeats.
        if time.monotonic() > until:
            sys.exit(f"history: {url}: not there: {missing}; no metrics: {wrong[:3]}")
        time.sleep(0.5)


def run(posse_metrics):
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(NAME).getOrCreate()
    context = spark.sparkContext
    while len(context._jsc.sc().statusTracker().getExecutorInfos()) <= EXECUTORS:
        time.sleep(0.2)
    total = context.parallelize(range(1000), 8).map(lambda n: (n % 7, n)).reduceByKey(lambda a, b: a + b, 4).values().sum()
    if total != sum(range(1000)):
        sys.exit(f"history: the sum is {total}")
    page = context.uiWebUrl
    scrape(f"{page}/metrics/prometheus", r"metrics_.*driver_BlockManager_memory_maxMem_MB")
    scrape(f"{page}/metrics/executors/prometheus", *(
        rf'metrics_executor_completedTasks_total\{{.*executor_id="{i}".*\}} [1-9]' for i in range(1, EXECUTORS + 1)))
    scrape(f"http://{posse_metrics}/metrics", rf'posse_executors\{{.*state="running".*\}} {EXECUTORS}')
    spark.stop()


def read_in_browser(url, application):
    """A script of the page fills its table. On a busy machine Chromium may give the page before that: then it is read again."""
    chromium = shutil.which("chromium")
    if not chromium:
        return "; NOT TESTED in a browser: chromium is missing"
    until, page = time.monotonic() + SECONDS_MAX, ""
    while application not in page:
        if time.monotonic() > until:
            sys.exit(f"history: in Chromium the table has no {application}: {page[-2000:]}")
        with tempfile.TemporaryDirectory() as profile:
            page = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                                   f"--virtual-time-budget={SECONDS_MAX * 1000}", "--dump-dom", url],
                                  capture_output=True, text=True, check=True, timeout=SECONDS_MAX).stdout
    return ", also in Chromium"


def check(events, log_file, spark_class, port, *keys):
    """In front of a real volume this is the Deployment of history/history-server.yaml."""
    keys = [f"spark.history.fs.logDirectory={events}", f"spark.history.ui.port={port}", "spark.history.fs.update.interval=1s", *keys]
    options = " ".join(f"-D{key}" for key in keys)
    with open(log_file, "wb") as log:
        server = subprocess.Popen([spark_class, "org.apache.spark.deploy.history.HistoryServer"], stdout=log, stderr=log,
                                  env={**os.environ, "SPARK_HISTORY_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"})
    try:
        until, found = time.monotonic() + SECONDS_MAX, []
        while not found and time.monotonic() < until and server.poll() is None:
            try:
                found = json.loads(get(f"http://127.0.0.1:{port}/api/v1/applications?status=completed"))
            except OSError:
                pass
            time.sleep(0.2)
        if [one["name"] for one in found] != [NAME]:
            sys.exit(f"history: the server shows {found}")
        there = f"http://127.0.0.1:{port}/api/v1/applications/{found[0]['id']}"
        executors = {one["id"] for one in json.loads(get(f"{there}/allexecutors"))}
        if executors != {"driver", *map(str, range(1, EXECUTORS + 1))}:
            sys.exit(f"history: executors: {executors}")
        if NAME not in get(f"http://127.0.0.1:{port}/history/{found[0]['id']}/jobs/"):
            sys.exit("history: the page of the jobs does not name the application")
        seen = read_in_browser(f"http://127.0.0.1:{port}/", found[0]["id"])
        print(f"history: the server shows {found[0]['id']} with its executors and jobs{seen}", flush=True)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    {"run": run, "check": check}[sys.argv[1]](*sys.argv[2:])
