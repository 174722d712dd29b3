"""Runs a driver's command and watches the API server meanwhile: who created which executor.

witness.py [--memory PROFILE=MEMORY]... COMMAND...

Ends with the command's code, or with 1 where an executor was created by anybody but posse, has
another memory than its profile, or where something was left behind. $AUDIT_LOG names the server's
audit log, where it has one: that has to say the same.
"""

import json
import os
import subprocess
import sys
import threading
import time

import kube

API = kube.Api("example-witness")


def executors(pods=None):
    """Of all pods where none are given."""
    pods = API.get(kube.PODS)["items"] if pods is None else pods
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get("spark-role") == "executor"]


def leftovers():
    """What an application that has ended should not have left."""
    maps = [item["metadata"]["name"] for item in API.get(kube.CONFIG_MAPS)["items"]]
    pods = [pod["metadata"]["name"] for pod in executors()]
    return pods + [name for name in maps if name.startswith("spark-exec-")]


def follow(created):
    """Notes each executor as it was when it was created."""
    for event in API.watch(kube.PODS):
        if event["type"] == "ADDED":
            created.extend(executors([event["object"]]))


def creates(log):
    """Who asked the server for which pod, as it noted since the log was opened: (agent, name, code)."""
    found = []
    for line in log:
        entry = json.loads(line)
        target = entry["objectRef"]
        is_dry_run = "dryRun=" in entry["requestURI"]
        if entry["verb"] == "create" and "subresource" not in target and not is_dry_run:
            found.append((entry["userAgent"], target.get("name"), entry["responseStatus"]["code"]))
    return found


def row(pod):
    metadata = pod["metadata"]
    creator = ",".join(sorted({entry["manager"] for entry in metadata["managedFields"]}))
    profile = metadata["labels"]["spark-exec-resourceprofile-id"]
    resources = pod["spec"]["containers"][0]["resources"]
    return metadata["name"], creator, profile, resources["requests"]["memory"]


def main():
    memory, command = {}, sys.argv[1:]
    while command[0] == "--memory":
        profile, size = command[1].split("=")
        memory[profile], command = size, command[2:]
    created, audit = [], os.environ.get("AUDIT_LOG")
    log = open(audit, encoding="utf-8") if audit else None
    if log:
        log.seek(0, os.SEEK_END)
    threading.Thread(target=follow, args=(created,), daemon=True).start()
    code = subprocess.run(command, check=False).returncode
    until = time.monotonic() + 30
    while leftovers() and time.monotonic() < until:
        time.sleep(0.2)
    rows = [row(pod) for pod in created]
    for name, creator, profile, size in rows:
        print(f"created: {name} by {creator}, profile {profile}, memory {size}", flush=True)
    wrong = [one for one in rows if one[1] != "posse" or memory.get(one[2], one[3]) != one[3]]
    if memory and set(memory) - {one[2] for one in rows}:
        wrong.append("a profile has no executor")
    if log:
        asked = creates(log)
        wrong += [one for one in asked if not one[0].startswith("posse/")]
        if sorted(name for _, name, code in asked if code == 201) != sorted(one[0] for one in rows):
            wrong.append(f"the audit log has other creates: {asked}")
        print(f"the audit log: {len(asked)} creates of pods, all of them from posse/", flush=True)
    if not rows or wrong or leftovers():
        print(f"witness: wrong: {wrong}; left behind: {leftovers()}", file=sys.stderr)
        return code or 1
    print(f"all {len(rows)} executors created by posse, nothing left behind", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
