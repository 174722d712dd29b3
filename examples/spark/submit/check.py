"""Submits the applications of this folder to the cluster of $KUBECONFIG, and checks their results.

check.py FOLDER [--lose-node] APPLICATION...: `words` counts words. `streaming` loses its driver in the middle, and the
next driver goes on where it was. `files`, on the embedded cluster alone, opens what it brings along by its name. FOLDER becomes the volume spark-data, so all nodes must have it.

On the embedded cluster, which has no images, $SPARK_HOME and the files of this repository take the image's place, and
`words` is submitted by posse-spark-submit. With --lose-node the nodes run on this machine (nN/kubelet.pid and
nN/containerd.sock beside $KUBECONFIG): the node of the driver is killed, for `words` too, and its kubelet is started again
at the end. Without it the driver's pod is deleted. $POSSE is the binary, $UPLOAD_PATH where posse-spark-submit copies files
(default: a folder of FOLDER), and $UPLOAD_KEYS are more keys, KEY=VALUE, for it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
from pathlib import Path

import kube

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
API = kube.Api("example-submit")
FILES, NUMBERS_PER_FILE, BATCHES_BEFORE_LOSS = 12, 100, 4
SECONDS_MAX = 300
UPLOAD_PATH = os.environ.get("UPLOAD_PATH")
IS_EMBEDDED = "EXECUTOR_TEMPLATE" in os.environ


def make_volume(folder):
    """A volume and its claim: FOLDER on each node."""
    name, size, modes = {"name": "spark-data"}, {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"accessModes": modes, "capacity": size, "hostPath": {"path": str(folder)}, "storageClassName": ""}
    claim = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": "", "volumeName": "spark-data"}
    for path, spec in [("/api/v1/persistentvolumes", volume), (f"{kube.NAMESPACE}/persistentvolumeclaims", claim)]:
        try:
            API.call("POST", path, {"metadata": name, "spec": spec})
        except urllib.error.HTTPError as error:
            # 409: an earlier run made it.
            if error.code != 409:
                raise


def wait_until(what, done):
    until = time.monotonic() + SECONDS_MAX
    while not (value := done()):
        if time.monotonic() > until:
            sys.exit(f"submit: not within {SECONDS_MAX} s: {what}")
        time.sleep(0.2)
    return value


def submit(name, *application):
    """Starts `posse submit`, which waits for the end and exits with the driver's code. No application: that of posse.yaml."""
    command = [os.environ["POSSE"], "submit", "-f", HERE / "posse.yaml", "--app", name, "--namespace", "default",
               "--create-rbac", "--logs"]
    if application:
        command += ["--", *submitter(), *confs(), *application]
    return subprocess.Popen([str(word) for word in command])


def submit_by_spark(folder, name, *application):
    """The same by `posse-spark-submit --deploy-mode cluster`, on the embedded cluster: no posse.yaml, and Spark's keys."""
    template = folder / "driver.yaml"
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "spark-data"}}
    mounts = [{"name": "data", "mountPath": "/data"}]
    spec = {"containers": [{"name": "main", "volumeMounts": mounts}], "volumes": [claim]}
    template.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}), encoding="utf-8")
    driver = "spark.kubernetes.driver"
    path = f"{Path(os.environ['POSSE']).resolve().parent}:{os.environ['PATH']}"
    options = {f"{driver}.podTemplateFile": template, f"{driver}.podTemplateContainerName": "main",
               f"{driver}.request.cores": "100m", f"{driver}.label.team": "examples",
               "spark.kubernetes.driverEnv.SPARK_HOME": os.environ["SPARK_HOME"],
               "spark.kubernetes.driverEnv.PATH": path,
               # Large files come by this folder. The driver has it at the same path.
               "spark.kubernetes.file.upload.path": UPLOAD_PATH or f"file://{folder}/uploads",
               "spark.kubernetes.container.image": "none", "spark.kubernetes.namespace": "default"}
    command = [*submitter(), "--deploy-mode", "cluster", "--name", name, *confs(),
               *(f"--conf={key}={value}" for key, value in options.items()),
               *(f"--conf={key}" for key in os.environ.get("UPLOAD_KEYS", "").split()), *application]
    return subprocess.Popen([str(word) for word in command], env={**os.environ, "PATH": path})


def submitter():
    """What stands in front of the options: the program of the image, or of this repository."""
    if not IS_EMBEDDED:
        return ["/opt/spark/bin/posse-spark-submit"]
    return ["env", *(f"{key}={os.environ[key]}" for key in ("SPARK_HOME", "POSSE_SPARK_JAR")),
            TOP / "adapters/spark/posse-spark-submit", f"--driver-java-options={os.environ['JAVA_QUICK']}",
            f"--conf=spark.executor.extraJavaOptions={os.environ['JAVA_QUICK']}",
            f"--conf=spark.kubernetes.executor.podTemplateFile={os.environ['EXECUTOR_TEMPLATE']}",
            "--conf=spark.kubernetes.executor.podTemplateContainerName=spark",
            f"--conf=spark.pyspark.python={sys.executable}"]


def confs():
    """The options in posse.yaml: all applications here have the same."""
    lines = (HERE / "posse.yaml").read_text(encoding="utf-8").splitlines()
    return [line.strip()[2:] for line in lines if line.strip().startswith("- --conf=")]


def drivers(name):
    pods = API.get(f"{kube.PODS}?labelSelector=posse.dev/app={name},app.kubernetes.io/component=driver")["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def running_executors(name, lost_driver=None):
    """Those that are not being deleted and not of the lost driver. A lost node's pods stay Running for a while."""
    pods = API.get(f"{kube.PODS}?labelSelector=posse.dev/app={name},spark-role=executor")["items"]
    return [pod for pod in pods if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"]["ownerReferences"][0]["uid"] != lost_driver]


def check_labels(name):
    """The driver has Spark's labels, by which others find what belongs to an application: the id is that of its executors."""
    [executor, *_] = wait_until("an executor", lambda: running_executors(name))
    [driver] = drivers(name)
    for label, want in [("spark-role", "driver")] + [
            (label, executor["metadata"]["labels"][label]) for label in ("spark-app-selector", "spark-app-name")]:
        if (got := driver["metadata"]["labels"].get(label)) != want:
            sys.exit(f"submit: the driver's label {label} is {got}, and not {want}")


class Node:
    """A node of this machine, by its processes."""

    def __init__(self, name):
        self.name = name
        self.data, self.folder = Path(os.environ["KUBECONFIG"]).resolve().parent, name.replace("node-", "n")
        self.command = []

    def kill(self):
        """Kills the kubelet and all containers."""
        pid = int((self.data / self.folder / "kubelet.pid").read_text())
        self.command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        ctr = ["ctr", "-a", self.data / self.folder / "containerd.sock", "-n", "k8s.io", "tasks"]
        tasks = subprocess.run([*ctr, "ls", "-q"], check=True, capture_output=True, text=True).stdout.split()
        for task in tasks:
            subprocess.run([*ctr, "kill", "-s", "KILL", task], check=False)

    def start(self):
        with open(self.data / self.folder / "kubelet.log", "ab") as log:
            kubelet = subprocess.Popen(self.command, cwd=self.data, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        (self.data / self.folder / "kubelet.pid").write_text(str(kubelet.pid))
        wait_until("the node to be ready", self.is_ready)

    def is_ready(self):
        conditions = API.get(f"/api/v1/nodes/{self.name}")["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def lose_driver(name, lose_node):
    """Ends the driver's pod or its node. Returns the pod's uid and what undoes the loss."""
    driver = drivers(name)[0]
    since = time.monotonic()
    if lose_node:
        node = Node(driver["spec"]["nodeName"])
        node.kill()
        print(f"submit: {name}: killed {driver['spec']['nodeName']}, the driver's node", flush=True)
    else:
        API.call("DELETE", f"{kube.PODS}/{driver['metadata']['name']}", {"gracePeriodSeconds": 0})
        print(f"submit: {name}: deleted the driver's pod", flush=True)
    uid = driver["metadata"]["uid"]
    wait_until("another driver with executors", lambda: len(running_executors(name, uid)) >= 2)
    print(f"submit: {name}: driver lost -> executors of the next driver run: {time.monotonic() - since:.0f} s", flush=True)
    return node.start if lose_node else lambda: None


def end(name, process):
    code = process.wait(SECONDS_MAX)
    if code:
        sys.exit(f"submit: {name} ended with {code}")


def words(folder, lose_node):
    shutil.rmtree(folder / "text", ignore_errors=True)
    shutil.copytree(TOP / "fixtures/text", folder / "text")
    if IS_EMBEDDED:
        process = submit_by_spark(folder, "spark-words", HERE.parent / "wordcount.py", "/data/text", "/data/out")
    else:
        process = submit("spark-words")
    undo = None
    check_labels("spark-words")
    if lose_node:
        wait_until("two executors", lambda: len(running_executors("spark-words")) >= 2)
        undo = lose_driver("spark-words", lose_node)
    end("spark-words", process)
    if IS_EMBEDDED and not UPLOAD_PATH and not list(folder.glob("uploads/spark-upload-*/wordcount.py")):
        sys.exit("submit: the application did not come by the upload path")
    if undo:
        undo()


def files(folder, _):
    parts = folder / "parts"
    (parts / "bin").mkdir(parents=True)
    (parts / "data.txt").write_text("data", encoding="utf-8")
    (parts / "part.py").write_text('NAME = "part"\n', encoding="utf-8")
    python = parts / "bin/python"
    python.write_text(f'#!/bin/sh\nENVIRONMENT=archive exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    with tarfile.open(parts / "environment.tgz", "w:gz") as archive:
        archive.add(parts / "bin", "bin")
    end("spark-files", submit_by_spark(
        folder, "spark-files", "--files", parts / "data.txt", "--py-files", parts / "part.py", "--archives",
        f"{parts}/environment.tgz#environment", "--conf=spark.pyspark.python=./environment/bin/python", HERE / "files.py", "/data/result"))
    if (got := (folder / "result").read_text(encoding="utf-8")) != "data part archive data part archive":
        sys.exit(f"submit: the application found {got}")


def streaming(folder, lose_node):
    folder = folder / "stream"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    folder.chmod(0o777)
    numbers = range(FILES * NUMBERS_PER_FILE)

    def write(indices):
        for i in indices:
            part = numbers[i * NUMBERS_PER_FILE:(i + 1) * NUMBERS_PER_FILE]
            # Renamed, so that the stream never reads a part of a file. Spark ignores names with a dot in front.
            hidden = folder / "in" / f".{i:02}.txt"
            hidden.write_text("".join(f"{number}\n" for number in part), encoding="utf-8")
            hidden.rename(folder / "in" / f"{i:02}.txt")

    write(range(BATCHES_BEFORE_LOSS))
    process = submit("spark-streaming", HERE / "streaming.py" if IS_EMBEDDED else "/opt/app/streaming.py", "/data/stream")
    commits = folder / "checkpoint/commits"

    def committed():
        return len([path for path in commits.glob("*") if path.name.isdigit()])

    wait_until("some batches", lambda: committed() == BATCHES_BEFORE_LOSS or process.poll() is not None)
    if process.poll() is not None:
        sys.exit(f"submit: spark-streaming ended too early, with {process.poll()}")
    undo = lose_driver("spark-streaming", lose_node)
    write(range(BATCHES_BEFORE_LOSS, FILES))
    (folder / "complete").touch()
    end("spark-streaming", process)
    undo()
    result = json.loads((folder / "result").read_text(encoding="utf-8"))
    print(f"submit: spark-streaming: {BATCHES_BEFORE_LOSS} batches before the loss, then {result}", flush=True)
    count = len(numbers)
    if (result["rows"], result["distinct"], result["sum"]) != (count, count, sum(numbers)):
        sys.exit("submit: the numbers are wrong")
    if result["batches"] != list(range(BATCHES_BEFORE_LOSS, FILES)):
        sys.exit("submit: the next driver did not go on where the first one was")


def main():
    folder, *rest = sys.argv[1:]
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # For the user of Spark's image.
    folder.chmod(0o777)
    make_volume(folder)
    lose_node = "--lose-node" in rest
    for application in [word for word in rest if word != "--lose-node"]:
        {"words": words, "streaming": streaming, "files": files}[application](folder, lose_node)
        left = [pod["metadata"]["name"] for pod in running_executors(f"spark-{application}")]
        if left:
            sys.exit(f"submit: executors are left behind: {left}")
        print(f"submit: {application}: all right, the driver was a Job", flush=True)


main()
