"""Shared by the run.py of the examples: starting processes, reading events, checking results."""

import base64
import contextlib
import datetime
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import string
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 0.02
SECONDS_MAX = 120
SECONDS_TO_END = 30
CHARS_MAX = 100
# Linux gives those from 32768: ip_local_port_range in https://docs.kernel.org/networking/ip-sysctl.html
PORTS, PORTS_IN_USE_MAX = (11_000, 30_000), 20
# A cluster whose nodes are processes of this machine (../.ci/nodes). Without it the examples start an embedded one.
NODES = os.environ.get("POSSE_NODES")
IPV6 = Path("/proc/net/if_inet6")
# That of IPv6, where this machine has it.
LOOPBACK = "::1" if IPV6.exists() and " lo\n" in IPV6.read_text() else "127.0.0.1"
# The nodes that have the image. Its libc runs this machine's Python, too.
NODES_OF_IMAGE, IMAGE = ["node-0", "node-1"], "registry.example.com/examples:0.1.0"


def listeners(pids):
    """Where the processes listen: program, address as in /proc/net/tcp."""
    listens = {}  # by the socket's inode
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *rest = line.split()
            if state == "0A":
                listens[f"socket:[{rest[5]}]"] = address
    found = set()
    for pid in pids if listens else ():
        with contextlib.suppress(OSError):  # it has just ended
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            files = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
            found |= {(name, listens[file]) for file in files & listens.keys()}
    return sorted(found)


def beyond_loopback(pids):
    """Those of the processes that listen where other machines reach them: program, address."""
    # Each four bytes are reversed. 127.0.0.0/8, the same as an IPv6 address, and ::1.
    is_loopback = re.compile(r"(0{16}FFFF0000)?.{6}7F:|0{24}01000000:")
    return [found for found in listeners(pids) if not is_loopback.match(found[1])]


class Late(Exception):
    """Something did not happen in time."""


def posse_binary():
    """$POSSE, else the binary that was built last."""
    if "POSSE" in os.environ:
        return os.environ["POSSE"]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # Python 3.12 also finds a file that does not exist in a folder that does.
    built = [path for kind in ("release", "debug") for path in target.glob(f"*/{kind}/posse") if path.is_file()]
    if not built:
        sys.exit(f"no posse in {target}: run `cargo build --release`, or name one by $POSSE")
    return str(max(built, key=lambda path: path.stat().st_mtime))


def free_port(host="127.0.0.1"):
    return free_ports(1, host)[0]


def free_ports(n, host="127.0.0.1"):
    """Different ports that nobody uses. The kernel gives them to nobody who asks for any port, so they stay free."""
    found = []
    with contextlib.ExitStack() as held:
        for port in random.sample(range(*PORTS), k=n + PORTS_IN_USE_MAX):
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind((host, port))
                found.append(port)
            if len(found) == n:
                return found
    sys.exit(f"of {n + PORTS_IN_USE_MAX} ports of {host} only {len(found)} are free")


def json_lines(path):
    """The complete lines of a file that is still written; none if the file does not exist."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def pod_on_nodes(container):
    """What a pod needs so that the project's files and this Python are in its container, where they are on this machine."""
    folders = {"project": str(ROOT), "python": sys.base_prefix}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    mounts = [{"name": name, "mountPath": path} for name, path in folders.items()]
    nodes = [{"key": "kubernetes.io/hostname", "operator": "In", "values": NODES_OF_IMAGE}]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": nodes}]}}
    return {"volumes": volumes, "affinity": {"nodeAffinity": affinity}, "containers": [
        {**container, "image": IMAGE, "workingDir": str(ROOT), "volumeMounts": mounts}]}


def driver_host():
    """The address of this machine for pods."""
    words = ["kubectl", "get", "node", NODES_OF_IMAGE[0], "-o", "jsonpath={.status.addresses[0].address}"]
    return subprocess.check_output(words, env={**os.environ, "KUBECONFIG": NODES}, text=True) if NODES else "127.0.0.1"


def listens(path):
    """Whether somebody listens at this unix socket: its file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as stream:
        return stream.connect_ex(str(path)) == 0


def delete_pod(kubeconfig, name):
    """Like `kubectl delete pod --grace-period=0`."""
    host, authority, token = (
        re.search(rf'\b{word}: "?([^",}}\s]+)', Path(kubeconfig).read_text()).group(1)
        for word in ("server", "certificate-authority-data", "token"))
    trusted = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    api = http.client.HTTPSConnection(host.removeprefix("https://"), context=trusted, timeout=10)
    api.request("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0",
                headers={"authorization": f"Bearer {token}"})
    assert api.getresponse().status == 200, name


class Checks:
    """One scenario. Its processes end with it. Its files stay if a check failed."""

    def __init__(self, name, seconds_max=SECONDS_MAX):
        self.name, self.seconds_max, self.failed = name, seconds_max, 0
        self.instance = "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
        self.folder = ROOT / "target" / "examples" / f"{name}-{self.instance}"
        self.folder.mkdir(parents=True)
        self.started = []
        self.at = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.signal(signal.SIGKILL)
        seconds = f"{time.monotonic() - self.at:.1f} s"
        if error or self.failed:
            sys.exit(f"{self.name}: FAILED after {seconds}: {error or self.failed}; see {self.folder}")
        shutil.rmtree(self.folder)
        self.say(seconds)

    def say(self, text):
        print(f"{self.name}: {text}", flush=True)

    def same(self, what, got, want):
        """A check."""
        if got != want:
            self.failed += 1
            self.say(f"FAILED: {what}:\n  got  {got}\n  want {want}")
        else:
            text = str(want)
            self.say(f"ok: {what}: {text if len(text) < CHARS_MAX else text[:CHARS_MAX] + '…'}")

    def start(self, log, *command, cwd=ROOT, **environment):
        """Starts a process, from the project's folder; its output goes to files."""
        with open(self.folder / f"{log}.out", "w") as out, open(self.folder / f"{log}.err", "w") as err:
            process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, "NO_COLOR": "1", **environment},
            )
        self.started.append(process)
        return process

    def start_cluster(self):
        """Returns the kubeconfig of $POSSE_NODES, else of a cluster that it starts."""
        if NODES:
            return NODES
        path = self.folder / "kubeconfig"
        self.start("dev", posse_binary(), "dev", "--kubeconfig", str(path))
        self.until("a cluster", path.exists)
        return str(path)

    def start_posse(self, log, *words, cluster):
        """Starts a run beside its driver. Its control address is the file `control`."""
        return self.start(log, posse_binary(), "run", *words, "--kubeconfig", cluster, "--instance", self.instance,
                          "--control", f"unix:{self.folder / 'control'}", "--events", str(self.folder / "events"))

    def start_queue(self, log, cluster):
        """Starts a run whose tasks are the steps of an engine in this Python's environment."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        step = {"name": "step", "image": "busybox:1.36", "command": ["true"], "env": [{"name": "PATH", "value": path}]}
        spec = pod_on_nodes(step) if NODES else {"containers": [step]}
        configuration = self.folder / "posse.yaml"
        configuration.write_text(json.dumps({"app": "flow", "executors": [{"count": 0, "max": 16, "pod": {"spec": spec}}]}))
        return self.start_posse(log, "-f", str(configuration), cluster=cluster)

    def submit(self, cluster):
        """Submits the example to an embedded cluster. Its driver's output goes to a file with the name of the pod."""
        line = re.search(r"  command: \[(env, .*)\]\n", (ROOT / "examples" / self.name / "posse.yaml").read_text())
        words = re.sub('[,"]', "", line[1])
        # The Service's name leads nowhere there.
        driver = f"  command: [sh, -c, 'exec {words} >{self.folder}/$POD_NAME']\n  image: python:3.12-slim\n  host: 127.0.0.1\n"
        words = ["submit", "--create-rbac", "--no-wait", "-f", self.configuration((line[0], driver)), "--kubeconfig", cluster]
        subprocess.run([posse_binary(), *words], cwd=ROOT, check=True, capture_output=True)

    def driver(self, cluster, other_than=None):
        """The pod of the submitted application's driver, with the executors' instance."""
        words = [posse_binary(), "apps", self.name, "-o", "json", "--kubeconfig", cluster]
        [app] = json.loads(subprocess.check_output(words))
        driver = app["state"] == "Running" and app["driver"]
        return driver and driver["pod"] != other_than and driver

    def output(self, log):
        return (self.folder / log).read_text()

    def until(self, what, condition):
        """Waits until the condition is true. Returns its value."""
        end = time.monotonic() + self.seconds_max
        while not (got := condition()):
            codes = [process.poll() for process in self.started]
            if any(code not in (None, 0, -signal.SIGKILL) for code in codes):
                raise Late(f"{what}: a process ended first: {codes}")
            if time.monotonic() > end:
                raise Late(f"{what}: not within {self.seconds_max} s")
            time.sleep(POLL_SECONDS)
        return got

    def configuration(self, *replaced):
        """The example's posse.yaml with some words replaced."""
        text = (ROOT / "examples" / self.name / "posse.yaml").read_text()
        for word, other in replaced:
            assert word in text, word
            text = text.replace(word, str(other))
        path = self.folder / "posse.yaml"
        path.write_text(text)
        return str(path)

    def events(self, *names):
        events = json_lines(self.folder / "events")
        return [event for event in events if event["event"] in names]

    def processes(self, *words):
        """Running executors of this run that have these words in their environment."""
        wanted = {word.encode() for word in (f"POSSE_INSTANCE={self.instance}", *words)}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = wanted <= set((folder / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if is_ours and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    def beyond_loopback(self):
        """The executors and the drivers of this run that listen where other machines reach them: program, address."""
        return beyond_loopback(self.processes())

    def process(self, number):
        """A process of this executor, once there is one: others may work before its container has begun."""
        return self.until(f"executor {number}", lambda: self.processes(f"POSSE_EXECUTOR_ID={number}"))[0]

    def signal(self, number, *words):
        """Sends a signal to the running executors that have these words in their environment."""
        for pid in self.processes(*words):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)


def at(event):
    """The event's time in seconds since 1970."""
    return datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
