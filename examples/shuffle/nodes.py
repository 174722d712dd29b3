"""Runs app.py on real nodes, and counts the map tasks that ran again after all executors were killed with -9.

nodes.py FOLDER [services] [volumes]: with shuffle services of two versions of Spark side by side, and with a volume for each slot
instead of a service. Then one of the services moves to another node, which dies with the driver and the executors. FOLDER gets
files for the drivers, and the event logs. The nodes and this script are on one machine, because the script kills processes.
$KUBECONFIG names the cluster, $POSSE the binary. The first node needs the images of posse and of both versions of Spark
(../spark/submit/image.sh), and the second one those of posse and the newer version. Each service has its own label, port and folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPARK = HERE.parent / "spark"
sys.path.append(str(SPARK))
import check
import claims
import kube
import volumes

API = kube.Api("example-shuffle")
NODE, OTHER = "node-0", "node-1"
# The port of each service.
VERSIONS = {"4.3.0": 7337, "3.5.9": 7447}
N_EXECUTORS = 2
STORAGE_CLASS = "slots"
SECONDS_MAX = 600


def kubectl(*words, text=None):
    return subprocess.run(["kubectl", "-n", "default", *words], input=text, text=True, check=True, capture_output=True).stdout


def wait_until(what, done):
    check.wait_until(what, done, SECONDS_MAX)


def image(version):
    return f"registry.example.com/spark:{version}"


def shuffle_folder(version):
    return f"/var/lib/spark-shuffle-{version}"


def on(names):
    return [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]


def placement(names, **others):
    """The fields of a pod's spec that keep it on these nodes."""
    required = {"nodeSelectorTerms": [{"matchExpressions": on(names)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required, **others}}}


def start_service(version, port, names):
    """service.yaml with another name, label, port and folder, and on these nodes."""
    affinity = f"affinity: {json.dumps(placement(names)['affinity'])}"
    text = (HERE / "service.yaml").read_text(encoding="utf-8")
    for old, new in [("/var/lib/spark-shuffle", shuffle_folder(version)), ("image: spark:4.3.0", f"image: {image(version)}"),
                     ("7337", str(port)), ("name: spark-shuffle\n", f"name: spark-shuffle-{version}\n"),
                     ("name: spark-shuffle}", f"name: spark-shuffle-{version}}}"),
                     ("serviceAccountName: spark-shuffle", f"serviceAccountName: spark-shuffle-{version}"),
                     ("namespace: analytics", "namespace: default"),
                     ("{app: shuffle}", f'{{app: shuffle, version: "{version}"}}'),
                     ("      hostNetwork: true", f"      {affinity}\n      hostNetwork: true")]:
        if old not in text:
            sys.exit(f"service.yaml has no {old!r}")
        text = text.replace(old, new)
    kubectl("apply", "-f", "-", text=text)


def services(version):
    pods = API.get(f"{kube.PODS}?labelSelector=app=shuffle,version={version}")["items"]
    return {pod["metadata"]["uid"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def is_served(version, gone=()):
    def is_ready(pod):
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))

    pods = services(version)
    return bool(pods) and not set(pods) & set(gone) and all(map(is_ready, pods.values()))


def executors(app):
    """Those that have a node, by uid."""
    pods = API.get(f"{kube.PODS}?labelSelector=posse.dev/app={app},spark-role=executor")["items"]
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


class Kubelet:
    """The kubelet of a node: a process of this machine, as ../../.ci/nodes starts it."""

    def __init__(self, node):
        self.node, self.data = node, Path(os.environ["KUBECONFIG"]).resolve().parent
        self.folder = self.data / node.replace("node-", "n")
        self.pid_file, self.settings = self.folder / "kubelet.pid", self.folder / "kubelet.yaml"
        self.before = self.settings.read_text(encoding="utf-8")
        # The node's containerd and kubelet see mounts of their own.
        self.mounts = ["nsenter", f"--mount=/proc/{(self.folder / 'containerd.pid').read_text().strip()}/ns/mnt"]
        self.words = []

    def kill(self):
        """Containers live on."""
        pid = int(self.pid_file.read_text())
        self.words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        os.kill(pid, signal.SIGKILL)

    def kill_containers(self):
        tasks = ["ctr", "-a", self.folder / "containerd.sock", "-n", "k8s.io", "tasks"]
        for task in subprocess.run([*tasks, "ls", "-q"], check=True, capture_output=True, text=True).stdout.split():
            # The first process of a container takes others with it.
            subprocess.run([*tasks, "kill", "-s", "KILL", task], capture_output=True, check=False)

    def start(self, **env):
        with open(self.folder / "kubelet.log", "ab") as log:
            kubelet = subprocess.Popen([*self.mounts, f"--wdns={self.data}", *self.words], cwd=self.data, env={**os.environ, **env},
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.pid_file.write_text(str(kubelet.pid))

    def restart(self, settings, **env):
        self.kill()
        self.settings.write_text(settings, encoding="utf-8")
        self.start(**env)

    def is_ready(self):
        nodes = API.get("/api/v1/nodes")["items"]
        return any(one["type"] == "Ready" and one["status"] == "True" for node in nodes if node["metadata"]["name"] == self.node
                   for one in node["status"]["conditions"])


class Application:
    """A submitted application, app.py by default; its driver finds FOLDER at /check."""

    def __init__(self, folder, name, version, conf, env, placed=None):
        self.name, self.folder, self.version = f"shuffle-{name}", folder / name, version
        self.placed = placed or placement([NODE])
        self.events, self.kill_at, self.log = (self.folder / one for one in ("events", "kill", "log"))
        self.spark_events = self.folder / "spark-events"
        for made in [self.folder, self.spark_events]:
            made.mkdir()
            made.chmod(0o777)
        self.conf = {
            "spark.kubernetes.container.image": image(version),
            "spark.kubernetes.executor.podTemplateContainerName": "spark",
            "spark.kubernetes.executor.request.cores": "100m",
            "spark.executor.memory": "512m", "spark.driver.memory": "512m",
            "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:///check/{name}/spark-events",
            "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false", **conf,
        }
        self.env = {"PYTHONPATH": "/check", "KILL_AT": f"/check/{name}/kill", **env}

    def submit(self, options=(), program=("/check/app.py",)):
        words = ["/opt/spark/bin/posse-spark-submit", *options,
                 *(f"--conf={key}={value}" for key, value in self.conf.items()), *program]
        configuration = {
            "app": self.name,
            "driver": {
                "image": image(self.version), "posse_image": "registry.example.com/posse:0.2.0", "memory": "1Gi",
                "env": self.env, "command": words,
                "pod": {"spec": {
                    **self.placed, "securityContext": {"runAsNonRoot": True, "runAsUser": 185},
                    "containers": [{"name": "driver", "volumeMounts": [{"name": "check", "mountPath": "/check"}]}],
                    "volumes": [{"name": "check", "hostPath": {"path": str(self.folder.parent)}}],
                }},
            },
            "executors": [], "shutdown": {"grace": "20s", "timeout": "10s"},
        }
        file = self.folder / "posse.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        command = [os.environ["POSSE"], "submit", "-f", str(file), "--namespace", "default", "--create-rbac", "--logs"]
        with open(self.log, "wb") as log:
            self.driver = subprocess.Popen(command, stdout=log, stderr=log)

    def running(self):
        """The executors that ran so far. Keeps the events, as lines of JSON."""
        command = [os.environ["POSSE"], "events", "--app", self.name, "--namespace", "default", "-o", "json"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if told:
            self.events.write_text(told, encoding="utf-8")
        events = map(json.loads, told.splitlines())
        return {event["executor"] for event in events if event["event"] == "executor_running"}

    def wait_for_map_stage(self):
        wait_until("the map stage", lambda: self.kill_at.exists() or self.driver.poll() is not None)

    def kill_executors(self):
        """Kills the executors' processes with -9: those of containers are processes of this machine."""
        n_killed = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                is_backend = b"KubernetesExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if is_backend and f"POSSE_APP={self.name}".encode() in environ:
                os.kill(int(pid), signal.SIGKILL)
                n_killed += 1
        return n_killed

    def end(self):
        """Waits for the driver. Gives its code, and how many map tasks ran again."""
        code = self.driver.wait(SECONDS_MAX)
        return code, check.map_tasks(self.spark_events) - check.MAPS

    def drivers(self):
        pods = API.get(f"{kube.PODS}?labelSelector=posse.dev/app={self.name},app.kubernetes.io/component=driver")["items"]
        return {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in pods}

    def shuffle_folders(self):
        """The folders of its runs on the nodes, which are this machine."""
        return set(Path(shuffle_folder(self.version)).glob(f"{self.name}.*"))


def with_service(name, version, port):
    """The configuration of an application beside a service."""
    return {
        "spark.kubernetes.executor.podTemplateFile": f"/check/{name}.yaml",
        "spark.posse.beside": f"app=shuffle,version={version}",
        "spark.shuffle.service.port": port,
        "spark.dynamicAllocation.minExecutors": N_EXECUTORS, "spark.dynamicAllocation.maxExecutors": N_EXECUTORS,
    }


def run_with_service(folder, version, port):
    name = f"service-{version.replace('.', '-')}"
    template = (HERE / "executor.yaml").read_text(encoding="utf-8")
    (folder / f"{name}.yaml").write_text(template.replace("/var/lib/spark-shuffle", shuffle_folder(version)), encoding="utf-8")
    application = Application(folder, name, version, with_service(name, version, port), {})
    application.submit(["--properties-file", "/check/spark.conf"])
    application.wait_for_map_stage()
    before, old, folders = services(version), executors(application.name), application.shuffle_folders()
    n_killed = application.kill_executors()
    for pod in before.values():
        kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    nodes = set()

    def look():
        nodes.update(node for uid, node in executors(application.name).items() if uid not in old)
        return nodes or application.driver.poll() is not None

    # The driver cannot end well without its successors. They may have ended before the service's old pod has gone.
    wait_until("the successors", look)
    wait_until("another pod of the service", lambda: is_served(version, before))
    code, again = application.end()
    since = time.monotonic()
    # The service's pod looks at all folders each hour only.
    wait_until("the folder of the run to be removed", lambda: not application.shuffle_folders())
    print(f"shuffle: service {version}: {n_killed} executors and {len(before)} pod of the service ended after the map stage: "
          f"{again} of {check.MAPS} map tasks ran again; executors on {nodes}; {len(folders)} folder removed "
          f"{time.monotonic() - since:.0f} s after the end", flush=True)
    return code == 0 and n_killed == N_EXECUTORS and again == 0 and nodes == {NODE} and len(folders) == 1


def run_with_lost_driver(folder, version, port):
    """The service, the executors and the driver are on one node, which dies after the map stage, is deleted, as a cloud does, and
    joins again as a new one. The next driver may be on either."""
    name, kubelet = "lost", Kubelet(OTHER)
    # Nodes of one machine share its network, so that only one of them has the service, and its disk, but not this folder.
    own = folder / "other-node"
    for made in [own, Path(shuffle_folder(version))]:
        made.mkdir(exist_ok=True)
    subprocess.run([*kubelet.mounts, "mount", "--bind", own, shuffle_folder(version)], check=True)
    before = services(version)
    start_service(version, port, [OTHER])
    wait_until("the service on the other node", lambda: is_served(version, before))
    template = (HERE / "executor.yaml").read_text(encoding="utf-8")
    (folder / f"{name}.yaml").write_text(template.replace("/var/lib/spark-shuffle", shuffle_folder(version)), encoding="utf-8")
    there = [{"weight": 100, "preference": {"matchExpressions": on([OTHER])}}]
    application = Application(folder, name, version, with_service(name, version, port), {
        "LOST_AT": f"/check/{name}/lost"}, placement([NODE, OTHER], preferredDuringSchedulingIgnoredDuringExecution=there))

    def folders():
        return set(own.glob(f"{application.name}.*"))

    application.submit(["--properties-file", "/check/spark.conf"])
    application.wait_for_map_stage()
    first, of_first = application.drivers(), folders()
    kubelet.kill()
    kubelet.kill_containers()
    kubectl("delete", "node", OTHER)
    for file in [application.kill_at, *application.spark_events.iterdir()]:
        file.unlink()
    wait_until("the lost driver to be gone", lambda: not set(first) & set(application.drivers()))
    kubelet.start()
    wait_until("the node to join", kubelet.is_ready)
    application.wait_for_map_stage()
    # All pods of a Job are one run, which has one folder on each node.
    of_next, lost = folders(), application.running()
    n_killed = application.kill_executors()
    told = application.folder / "lost.new"
    told.write_text(json.dumps(sorted(lost)), encoding="utf-8")
    told.rename(application.folder / "lost")
    code, again = application.end()
    wait_until("the folder of the run to be removed", lambda: not folders())
    print(f"shuffle: the driver's node lost: {n_killed} executors of the next driver ended after the map stage: {again} of {check.MAPS} "
          "map tasks ran again; the folder of the run removed at its end", flush=True)
    return (code == 0 and set(first.values()) == {OTHER} and len(of_first) == 1 and of_next == of_first
            and n_killed == N_EXECUTORS and again == 0)


def check_services(folder):
    for version, port in VERSIONS.items():
        start_service(version, port, [NODE])
    for version in VERSIONS:
        wait_until(f"the service {version}", lambda: is_served(version))
    newer, older = VERSIONS.items()
    results = [run_with_service(folder, *older), run_with_lost_driver(folder, *newer)]
    for version in VERSIONS:
        kubectl("delete", "daemonset", f"spark-shuffle-{version}", "--wait=false")
    return all(results)


def make_volumes(folder, name, account):
    """Volumes of NODE that nobody provisions, and the right to make claims for the driver's account."""
    objects = [{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": STORAGE_CLASS},
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}]
    for number in range(N_EXECUTORS):
        path = folder / f"volume-{name}-{number}"
        path.mkdir()
        path.chmod(0o777)
        objects.append({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name}, "spec": {
                "capacity": {"storage": "10Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]}}}})
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{account}-claims"}}
    objects.append({**role, "kind": "Role", "rules": [
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create", "delete", "get", "list"]}]})
    objects.append({**role, "kind": "RoleBinding", "subjects": [{"kind": "ServiceAccount", "name": account}],
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{account}-claims"}})
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def run_with_volumes(folder, name, when, wanted):
    template = {"apiVersion": "v1", "kind": "Pod", "spec": {
        "nodeSelector": {"kubernetes.io/hostname": NODE}, "containers": [{"name": "spark"}]}}
    (folder / f"{name}.yaml").write_text(json.dumps(template), encoding="utf-8")
    application = Application(folder, name, "4.3.0", {
        **volumes.CONF, f"{volumes.VOLUME}.options.storageClass": STORAGE_CLASS,
        "spark.kubernetes.executor.podTemplateFile": f"/check/{name}.yaml",
    }, {"WITH_VOLUMES": when})
    make_volumes(folder, name, f"{application.name}-driver")
    application.submit()
    application.wait_for_map_stage()
    before = claims.of_executors(API)
    n_killed = application.kill_executors()
    after = {}

    def have_successors():
        new = application.running() - set(before)
        after.update({one: claim for one, claim in claims.of_executors(API).items() if one in new})
        return len(after) == N_EXECUTORS or application.driver.poll() is not None

    wait_until("the successors", have_successors)
    code, again = application.end()
    claims.check(before, after, application.events)
    print(f"shuffle: volumes of slots, the reduce stage {when}: {n_killed} executors ended after the map stage: "
          f"{again} of {check.MAPS} map tasks ran again", flush=True)
    return code == 0 and n_killed == N_EXECUTORS and again == wanted


def check_volumes(folder):
    # Why the first one saves nothing: README.md.
    runs = [("at-once", "at once", check.MAPS), ("after-another", "after another shuffle", 0)]
    return all([run_with_volumes(folder, *one) for one in runs])


CHECKS = {"services": check_services, "volumes": check_volumes}


def prepare(folder):
    """A new folder with the files of the drivers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for file in [HERE / "app.py", HERE / "claims.py", HERE / "spark.conf", SPARK / "executors.py", SPARK / "kube.py"]:
        shutil.copy(file, folder)


def main():
    folder = Path(sys.argv[1]).resolve()
    prepare(folder)
    results = [CHECKS[name](folder) for name in sys.argv[2:] or CHECKS]
    if not all(results):
        sys.exit(f"shuffle: wrong; the logs are in {folder}")


if __name__ == "__main__":
    main()
