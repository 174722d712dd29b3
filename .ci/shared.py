"""What the checks in Python share."""

import base64
import contextlib
import http.client
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))
from checks import free_port, free_ports, json_lines, posse_binary  # noqa: F401 (for the checks)

CANNOT = 77
# Everything takes seconds, and on a busy machine minutes.
PATIENCE_SECONDS = 240
# When a wait says what it waits for.
TOLD_AFTER_SECONDS = 30
# Of each log, after a failure.
CHARS_SHOWN = 4000


def cannot(why):
    print(why, file=sys.stderr)
    sys.exit(CANNOT)


def fail(why):
    sys.exit(f"{Path(sys.argv[0]).name}: FAILED: {why}")


def tell(what, version):
    """Says for SUPPORT.md what was tested."""
    subprocess.run([ROOT / ".ci/support", what, version], check=True)


def load(name):
    """Another check, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / ".ci" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def sh(words, *arguments, **options):
    """Runs a command of .ci/lib."""
    script = f'. "$0"; {words} "$@"'
    return subprocess.run(["bash", "-c", script, ROOT / ".ci/lib", *arguments], **options).returncode == 0


def need(program, *packages):
    """A program on PATH, which Debian's packages bring if it is missing."""
    if not sh("get", program, *packages):
        cannot(f"{program} is missing, and cannot be installed (Debian: {' '.join(packages) or program})")


def wait(what, ready, seconds=PATIENCE_SECONDS):
    """Waits until `ready` returns something true; gives it."""
    deadline = time.monotonic() + seconds
    told = time.monotonic() + TOLD_AFTER_SECONDS
    while True:
        try:
            found, why = ready(), ""
        # A server that does not answer yet.
        except OSError as error:
            found, why = None, f": {error}"
        if found:
            return found
        if time.monotonic() > deadline:
            fail(f"waited {seconds} s for {what}{why}")
        # Who waits may be ended before, and then nobody knows for what.
        if time.monotonic() > told:
            print(f"has waited {TOLD_AFTER_SECONDS} s of at most {seconds} s for {what}{why}", flush=True)
            told = deadline
        time.sleep(0.1)


@contextlib.contextmanager
def logs_of_a_failure(*logs):
    try:
        yield
    except BaseException:
        for path in map(Path, logs):
            if path.exists():
                print(f"--- {path}:\n{path.read_text(errors='replace')[-CHARS_SHOWN:]}", file=sys.stderr)
        raise


@contextlib.contextmanager
def process(*command, log, **options):
    """A process with a group of its own, which ends with this block."""
    with open(log, "ab") as out:
        child = subprocess.Popen(list(map(str, command)), start_new_session=True, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=out, **options)
    try:
        with logs_of_a_failure(log):
            yield child
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
                break


def said(process, log, pattern):
    """What a running program says in its log, such as the port that it has chosen."""
    def look():
        found = re.search(pattern, Path(log).read_text(errors="replace"))
        if not found and process.poll() is not None:
            fail(f"{process.args[0]} has ended with exit code {process.returncode}")
        return found
    return wait(f"{pattern} in {log}", look)


def events_of(file, kind):
    return [event for event in json_lines(file) if event["event"] == kind]


class Cluster:
    """The owner's view of an embedded cluster, through its kubeconfig."""

    def __init__(self, kubeconfig):
        text = wait(kubeconfig, lambda: kubeconfig.exists() and kubeconfig.read_text())
        value = lambda word: (found := re.search(rf'\b{word}: *"([^"]+)', text)) and found[1]
        self.url, self.token = value("server"), value("token")
        self.host, self.port = re.fullmatch(r"https?://(.*):(\d+)", self.url).groups()
        self.port = int(self.port)
        authority = base64.b64decode(value("certificate-authority-data") or "").decode()
        self.tls = ssl.create_default_context(cadata=authority) if authority else None

    def call(self, method, path, body=None, media_type="application/json"):
        connection = (http.client.HTTPSConnection(self.host, self.port, context=self.tls) if self.url.startswith("https:")
                      else http.client.HTTPConnection(self.host, self.port))
        with contextlib.closing(connection):
            headers = {"content-type": media_type, **({"authorization": f"Bearer {self.token}"} if self.token else {})}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            said = json.load(answer)
            if answer.status not in (200, 201, 202, 404):
                fail(f"{method} {path}: {answer.status} {said}")
            return said


class Run:
    """posse with a driver that sleeps, on a cluster that lives longer than it."""

    def __init__(self, stack, home, kubeconfig, settings, instance="one", **environment):
        self.home, self.kubeconfig, self.name, self.instance = home, kubeconfig, settings["app"], instance
        home.mkdir(exist_ok=True)
        self.file, self.log = home / "posse.yaml", home / "log"
        self.file.write_text(json.dumps(settings))
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(home), **environment}
        stack.callback(lambda: self.process.poll() is None and self.kill())
        self.start()

    def start(self):
        self.events_file = self.home / f"events-{time.monotonic_ns()}"
        command = [posse_binary(), "run", "-f", self.file, "--kubeconfig", self.kubeconfig, "--instance", self.instance]
        command += ["--events", self.events_file, "--control", f"unix:{self.home}/control", "--", "sleep", "3600"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self.environment)

    def events(self, kind):
        return events_of(self.events_file, kind)

    def posse(self, *words):
        command = [posse_binary(), *words, "--control", f"unix:{self.home}/control"]
        environment = {**self.environment, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout

    def status(self):
        return json.loads(self.posse("status", "-o", "json") or "{}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        assert code == 143, (code, self.log.read_text()[-CHARS_SHOWN:])


class SimulatedRun:
    """posse on an embedded cluster with simulated pods. This program ends some of them, as a kubelet would."""

    TOKEN = "abcdefghijklmnop"

    def __init__(self, folder, counts, *flags, quota=None, budget="off"):
        self.folder, self.stack = folder, contextlib.ExitStack()
        folder.mkdir(0o700)
        (folder / "token").touch(0o600)
        (folder / "token").write_text(self.TOKEN)
        kubeconfig = folder / "kubeconfig"
        self.dev = self.start("dev.log", "dev", "--simulate", "--nodes", "20", "--start-delay", "300ms", "--kubeconfig", kubeconfig)
        self.cluster = Cluster(kubeconfig)
        if quota:
            spec = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(quota)}}}
            self.cluster.call("POST", "/api/v1/namespaces/default/resourcequotas", spec)
        groups = [{"group": name, "count": n, "image": "none:1", "command": ["sleep", "600"]} for name, n in counts.items()]
        config = {"app": "page", "failures": {"app": budget, "cluster": "off", "keep_failed": 0}, "executors": groups}
        (folder / "posse.yaml").write_text(json.dumps(config))
        self.flags = ["run", "--kubeconfig", kubeconfig, "--instance", "shown", *flags]
        self.run()

    def start(self, log, *command):
        # All runs here have one name, and so would their sockets in a common folder.
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}
        return self.stack.enter_context(process(posse_binary(), *command, log=self.folder / log, cwd=self.folder, env=env))

    def run(self):
        (self.folder / "run.log").unlink(missing_ok=True)
        self.process = self.start("run.log", *self.flags)
        self.port = int(said(self.process, self.folder / "run.log", r"page: http://\S+:(\d+)/")[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def applications(self):
        """The address of the page of all applications, with its token."""
        apps = self.start("apps.log", "apps", "--page", "--kubeconfig", self.folder / "kubeconfig")
        return said(apps, self.folder / "apps.log", r"http://\S+#token=\w+")[0]

    def history(self):
        headers = {"authorization": f"Bearer {self.TOKEN}"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}v1/history", headers=headers)) as answer:
            return json.load(answer)

    def running(self, group=None):
        of_group = [one for one in self.history()["executors"] if group in (None, one["group"])]
        return [one["id"] for one in of_group if one["state"] == "running" and "end" not in one]

    def wait_running(self, n):
        wait(f"{n} running executors", lambda: sum(group["running"] for group in self.history()["groups"]) >= n)

    def lose(self, ids, code, reason, message):
        """Ends the main containers, as a kubelet reports it."""
        for one in ids:
            path = f"/api/v1/namespaces/default/pods/page-shown-exec-{one}"
            name = self.cluster.call("GET", path)["spec"]["containers"][0]["name"]
            then = "2026-01-01T00:00:00Z"
            state = {"exitCode": code, "reason": reason, "message": message, "startedAt": then, "finishedAt": then,
                     "containerID": "test://container"}
            status = {"name": name, "image": "none:1", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": state}}
            self.patch_status(f"page-shown-exec-{one}", {"phase": "Failed", "containerStatuses": [status]})

    def patch_status(self, pod, status):
        self.cluster.call("PATCH", f"/api/v1/namespaces/default/pods/{pod}/status", {"status": status}, "application/merge-patch+json")

    def evict(self, ids):
        for one in ids:
            name = f"page-shown-exec-{one}"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
            self.cluster.call("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", body)

    def close(self):
        self.stack.close()
