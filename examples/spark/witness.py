"""Runs a driver's command and watches the API server meanwhile: who created which executor.

witness.py [--memory PROFILE=MEMORY]... COMMAND...

Ends with the command's code, or with 1 where an executor was created by anybody but posse, has
another memory than its profile, or where something was left behind.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request

NAMESPACE = "default"


def server():
    """The embedded cluster's kubeconfig is posse's own: one server, plain HTTP."""
    with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
        return re.search(r'server: *"?(http://[^",}\s]+)', file.read()).group(1)


def get(path):
    with urllib.request.urlopen(f"{server()}/api/v1/namespaces/{NAMESPACE}/{path}", timeout=10) as answer:
        return json.load(answer)


def executors(pods):
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get("spark-role") == "executor"]


def leftovers():
    """What an application that has ended should not have left."""
    maps = [item["metadata"]["name"] for item in get("configmaps")["items"]]
    pods = [pod["metadata"]["name"] for pod in executors(get("pods")["items"])]
    return pods + [name for name in maps if name.startswith("spark-exec-")]


def follow(created):
    """Notes each executor as it was when it was created."""
    url = f"{server()}/api/v1/namespaces/{NAMESPACE}/pods?watch=true"
    with urllib.request.urlopen(url) as lines:
        for line in lines:
            event = json.loads(line)
            if event["type"] == "ADDED":
                created.extend(executors([event["object"]]))


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
    created = []
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
    if not rows or wrong or leftovers():
        print(f"witness: wrong: {wrong}; left behind: {leftovers()}", file=sys.stderr)
        return code or 1
    print(f"all {len(rows)} executors created by posse, nothing left behind", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
