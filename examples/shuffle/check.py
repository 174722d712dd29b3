"""The driver of the recipe `shuffle`: runs app.py with and without a shuffle service, and counts the map tasks.

check.py FOLDER: the folder for shuffle files and event logs.

The service is a pod of the embedded cluster: the process that service.yaml starts on each node.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import kube

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
from checks import free_port

SUBMIT = os.path.join(HERE, "..", "spark", "submit.sh")
MAPS = 8
DEADLINE_SECONDS = 90


def wait_until(what, done, seconds_max=DEADLINE_SECONDS):
    until = time.monotonic() + seconds_max
    while not done():
        if time.monotonic() > until:
            sys.exit(f"not within {seconds_max} s: {what}")
        time.sleep(0.1)


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def start_service(api, folder, port):
    options = (f"-Dspark.shuffle.service.port={port} -Dspark.shuffle.service.db.enabled=true "
               f"-Dspark.local.dir={folder} {os.environ['JAVA_QUICK']}")
    env = {"SPARK_HOME": os.environ["SPARK_HOME"], "SPARK_NO_DAEMONIZE": "1", "SPARK_SHUFFLE_OPTS": options}
    api.call("POST", kube.PODS, {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shuffle", "labels": {"app": "shuffle"}},
        "spec": {"hostNetwork": True, "containers": [{
            "name": "service", "image": "spark",
            "command": [os.path.join(os.environ["SPARK_HOME"], "bin", "spark-class"),
                        "org.apache.spark.deploy.ExternalShuffleService"],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }]}})
    wait_until("the shuffle service", lambda: answers(port))


def write_template(folder, path):
    """executor.yaml for this machine: its folder, and a command, because the embedded node pulls no image."""
    with open(os.path.join(HERE, "executor.yaml"), encoding="utf-8") as file:
        text = file.read().replace("/var/lib/spark-shuffle", folder)
    script = os.path.join(HERE, "..", "..", "adapters", "spark", "executor.sh")
    command = (f"    - name: spark\n      command: [sh, {json.dumps(script)}]\n      env:\n"
               f"        - {{name: SPARK_HOME, value: {json.dumps(os.environ['SPARK_HOME'])}}}\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("    - name: spark\n      env:\n", command))


def map_executors(folder):
    """The executor of each map task that ended well, by Spark's event log, without those of another shuffle."""
    (log,) = os.listdir(folder)
    with open(os.path.join(folder, log), encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    others = {one["Stage Info"]["Stage ID"] for one in events if one["Event"] == "SparkListenerStageSubmitted"
              and "another.shuffle" in one["Properties"]}
    return [int(one["Task Info"]["Executor ID"]) for one in events
            if one["Event"] == "SparkListenerTaskEnd" and one["Task Type"] == "ShuffleMapTask"
            and one["Stage ID"] not in others and one["Task End Reason"]["Reason"] == "Success"]


def map_tasks(folder):
    """How many map tasks ended well."""
    return len(map_executors(folder))


def run(name, work, arguments, **env):
    """Runs the application, and returns how many map tasks ran again."""
    logs = os.path.join(work, "events-" + name.replace(" ", "-"))
    os.makedirs(logs)
    env = {**os.environ, **env}
    subprocess.run([
        "sh", SUBMIT, *arguments, "--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{logs}",
        "--conf", "spark.eventLog.rolling.enabled=false", "--conf", "spark.eventLog.compress=false",
        os.path.join(HERE, "app.py")], check=True, env=env)
    again = map_tasks(logs) - MAPS
    print(f"shuffle: {name}: {again} of {MAPS} map tasks ran again", flush=True)
    return again


def left(folder):
    """The folders of runs: APP.INSTANCE/blockmgr-*."""
    return sorted({path.parent.name for path in pathlib.Path(folder).glob("*/blockmgr-*")})


def clean(folder):
    """What the second container of service.yaml does at its start and each hour, and at the end of a run."""
    subprocess.run([os.environ["POSSE"], "cleanup", "--node-dir", folder, "--all-apps", "--namespace", "default", "--yes"],
                   check=True)


def main():
    work = sys.argv[1]
    folder = os.path.join(work, "shuffle")
    os.makedirs(folder)
    api, port = kube.Api("example-shuffle"), free_port()
    without = run("without a service", work, ["--conf", "spark.executor.instances=2"])
    start_service(api, folder, port)
    template = os.path.join(work, "executor.yaml")
    write_template(folder, template)
    os.environ["EXECUTOR_TEMPLATE"] = template
    arguments = ["--properties-file", os.path.join(HERE, "spark.conf"), "--conf", f"spark.shuffle.service.port={port}"]
    arguments += [word for bound in ("min", "max") for word in ("--conf", f"spark.dynamicAllocation.{bound}Executors=2")]
    service = run("with a service that was killed too", work, arguments, SERVICE_PORT=str(port))
    there = left(folder)
    # This run holds its Lease, and so its folder stays. No run has the name of the other one.
    os.makedirs(os.path.join(folder, "ended.a1b2c", "blockmgr-1"))
    clean(folder)
    kept = left(folder)
    print(f"shuffle: the folder of an ended application was removed, and {len(kept)} of this run stays", flush=True)
    api.call("DELETE", f"{kube.PODS}/shuffle")
    if without == 0 or service != 0 or len(there) != 1 or kept != there:
        sys.exit(f"shuffle: wrong: {without} and {service} map tasks ran again; folders {there}, then {kept}")


if __name__ == "__main__":
    main()
