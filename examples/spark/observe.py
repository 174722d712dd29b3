"""Runs a driver's command and watches the API server: who created which executor.

observe.py [--memory PROFILE=MEMORY]... [--device NAME=COUNT]... COMMAND...

Exits with the command's code. Exits with 1 if posse did not create an executor, if an executor's memory
is not that of its profile, if an executor does not have the label of the pod template or COUNT devices, or
if something remains. With --device each node first gets DEVICES_PER_NODE devices. If $AUDIT_LOG names the
server's audit log, the log must show the same creates.
"""

import json
import os
import subprocess
import sys
import threading
import time

import kube

API = kube.Api("example-observer")
DEVICES_PER_NODE = "4"


def executors(pods=None):
    """The executors among these pods; without an argument, among all pods of the namespace."""
    pods = API.get(kube.PODS)["items"] if pods is None else pods
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get("spark-role") == "executor"]


def remaining():
    """Pods and ConfigMaps that remain but should be gone after the application has ended."""
    maps = [item["metadata"]["name"] for item in API.get(kube.CONFIG_MAPS)["items"]]
    pods = [pod["metadata"]["name"] for pod in executors()]
    return pods + [name for name in maps if name.startswith("spark-exec-")]


def follow(created):
    """Records each executor as it was created."""
    for event in API.watch(kube.PODS):
        if event["type"] == "ADDED":
            created.extend(executors([event["object"]]))


def creates(log):
    """The creates of pods in the audit log since it was opened: (User-Agent, name, status)."""
    found = []
    for line in log:
        entry = json.loads(line)
        target = entry["objectRef"]
        is_dry_run = "dryRun=" in entry["requestURI"]
        if entry["verb"] == "create" and "subresource" not in target and not is_dry_run:
            found.append((entry["userAgent"], target.get("name"), entry["responseStatus"]["code"]))
    return found


def add_devices(names):
    for node in API.get("/api/v1/nodes")["items"]:
        devices = dict.fromkeys(names, DEVICES_PER_NODE)
        API.call("PATCH", f"/api/v1/nodes/{node['metadata']['name']}/status",
                 {"status": {"capacity": devices, "allocatable": devices}}, "application/merge-patch+json")


def differs(pod, devices):
    """True if a pod has not what its template and Spark's keys say."""
    limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return pod["metadata"]["labels"].get("made-from") != "template" or any(
        limits.get(name) != count for name, count in devices.items())


def row(pod):
    metadata = pod["metadata"]
    creator = metadata["labels"]["app.kubernetes.io/managed-by"]
    profile = metadata["labels"]["spark-exec-resourceprofile-id"]
    resources = pod["spec"]["containers"][0]["resources"]
    return metadata["name"], creator, profile, resources["requests"]["memory"]


def main():
    wanted, command = {"--memory": {}, "--device": {}}, sys.argv[1:]
    while command[0] in wanted:
        name, value = command[1].split("=")
        wanted[command[0]][name], command = value, command[2:]
    memory, devices = wanted.values()
    add_devices(devices)
    created, audit = [], os.environ.get("AUDIT_LOG")
    log = open(audit, encoding="utf-8") if audit else None
    if log:
        log.seek(0, os.SEEK_END)
    threading.Thread(target=follow, args=(created,), daemon=True).start()
    code = subprocess.run(command, check=False).returncode
    until = time.monotonic() + 30
    while remaining() and time.monotonic() < until:
        time.sleep(0.2)
    rows = [row(pod) for pod in created]
    for name, creator, profile, size in rows:
        print(f"created: {name} by {creator}, profile {profile}, memory {size}", flush=True)
    wrong = [one for one in rows if one[1] != "posse" or memory.get(one[2], one[3]) != one[3]]
    wrong += [f"{pod['metadata']['name']}: label, or devices" for pod in created if differs(pod, devices)]
    if memory and set(memory) - {one[2] for one in rows}:
        wrong.append("a profile has no executor")
    if log:
        asked = creates(log)
        wrong += [one for one in asked if not one[0].startswith("posse/")]
        if sorted(name for _, name, code in asked if code == 201) != sorted(one[0] for one in rows):
            wrong.append(f"the audit log has other creates: {asked}")
        print(f"the audit log: {len(asked)} creates of pods, all of them from posse/", flush=True)
    if not rows or wrong or remaining():
        print(f"observe: wrong: {wrong}; left behind: {remaining()}", file=sys.stderr)
        return code or 1
    print(f"all {len(rows)} executors created by posse, nothing left behind", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
