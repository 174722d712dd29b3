"""A minimal scheduler and kubelet for a real API server: runs pods as local processes.

node.py FOLDER: binds each pod, starts its first container's command, and reports the start and the
exit code. Ends deleted pods. It has no images, probes or limits.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path

import kube

NAME = "local"
HOST_IP = "127.0.0.1"
API = kube.Api("example-node")
# Each pod has its own address. Nodes on the same machine use different ranges.
ADDRESSES = (f"127.{1 + os.getpid() % 250}.{n // 250}.{1 + n % 250}" for n in itertools.count())
FINAL = ("Succeeded", "Failed")


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Pod(threading.Thread):
    def __init__(self, pod, folder):
        super().__init__(daemon=True)
        self.pod, self.metadata, self.ip = pod, pod["metadata"], next(ADDRESSES)
        self.container = pod["spec"]["containers"][0]
        self.path, self.folder = f"{kube.PODS}/{self.metadata['name']}", folder / self.metadata["name"]
        self.ending, self.process = threading.Event(), None

    def run(self):
        # A pod that is already gone needs no update.
        with contextlib.suppress(urllib.error.HTTPError):
            self.bind()
            if not self.ending.is_set():
                code = self.live()
                if not self.ending.is_set():
                    self.say("Failed" if code else "Succeeded", {"terminated": {
                        "exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}})
            self.ending.wait()
            API.call("DELETE", self.path, {
                "gracePeriodSeconds": 0, "preconditions": {"uid": self.metadata["uid"]}})

    def bind(self):
        API.call("POST", f"{self.path}/binding", {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.metadata["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NAME}})

    def live(self):
        """Waits for the first process. Returns its exit code as a shell reports it."""
        environment = self.environment()
        command = [filled(word, environment) for part in ("command", "args") for word in self.container.get(part, [])]
        with open(f"{self.folder}.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment})
        try:
            self.say("Running", {"running": {"startedAt": now()}})
            code = self.process.wait()
        finally:
            self.kill(signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def environment(self):
        facts = {"status.podIP": self.ip, "status.hostIP": HOST_IP, "metadata.name": self.metadata["name"],
                 "metadata.namespace": self.metadata["namespace"], "spec.nodeName": NAME}
        known = {}
        for entry in self.container.get("env", []):
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            known[entry["name"]] = facts[field] if field else filled(entry.get("value", ""), known)
        # The folder that stands for an emptyDir.
        for mount in self.container.get("volumeMounts", []):
            own = f"{self.folder}/{mount['name']}"
            known = {name: value.replace(mount["mountPath"], own) for name, value in known.items()}
        return known

    def say(self, phase, state):
        is_ready = "True" if phase == "Running" else "False"
        API.call("PATCH", f"{self.path}/status", {"status": {
            "phase": phase, "podIP": self.ip, "podIPs": [{"ip": self.ip}], "hostIP": HOST_IP, "startTime": now(),
            "conditions": [{"type": kind, "status": is_ready} for kind in ("Ready", "ContainersReady")]
            + [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized")],
            "containerStatuses": [{
                "name": self.container["name"], "image": self.container["image"], "imageID": "none",
                "ready": phase == "Running", "restartCount": 0, "state": state}]}}, "application/merge-patch+json")

    def end(self, grace_seconds):
        if not self.ending.is_set():
            self.ending.set()
            self.kill(signal.SIGTERM)
            threading.Timer(grace_seconds, self.kill, [signal.SIGKILL]).start()

    def kill(self, number):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def filled(text, known):
    return re.sub(r"\$\((\w+)\)", lambda found: known.get(found.group(1), found.group(0)), text)


def main(folder):
    folder.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    pods = {}
    try:
        while True:
            for event in API.watch(kube.PODS):
                metadata = event["object"]["metadata"]
                pod = pods.get(metadata["uid"])
                if event["type"] == "ADDED" and not pod:
                    pod = pods[metadata["uid"]] = Pod(event["object"], folder)
                    pod.start()
                if pod and ("deletionTimestamp" in metadata or event["type"] == "DELETED"):
                    pod.end(metadata.get("deletionGracePeriodSeconds", 0))
    finally:
        for pod in pods.values():
            pod.kill(signal.SIGKILL)


main(Path(sys.argv[1]))
