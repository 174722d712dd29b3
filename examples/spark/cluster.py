"""Runs an application in cluster mode and checks the result: cluster.py ARGUMENTS OF SPARK-SUBMIT

The cluster has RBAC; the driver's account has the permissions that `posse run` and Spark need.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import kube
import observe

API = kube.Api("example-cluster")
SECONDS_MAX = 300
ROLES = "rbac.authorization.k8s.io"
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "patch", "watch"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "delete", "deletecollection"]},
    {"apiGroups": [""], "resources": ["services", "persistentvolumeclaims"],
     "verbs": ["delete", "deletecollection", "list"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
]


def make_account():
    name = {"metadata": {"name": "spark"}}
    account = {"kind": "ServiceAccount", "name": "spark", "namespace": "default"}
    role = {"apiGroup": ROLES, "kind": "Role", "name": "spark"}
    roles = f"/apis/{ROLES}/v1/namespaces/default"
    API.call("POST", f"{kube.NAMESPACE}/serviceaccounts", name)
    API.call("POST", f"{roles}/roles", {**name, "rules": RULES})
    API.call("POST", f"{roles}/rolebindings", {**name, "subjects": [account], "roleRef": role})


def drivers():
    """The drivers' pods, when all of them have ended and no executor is left; else empty."""
    pods = API.get(kube.PODS)["items"]
    found = [pod for pod in pods if pod["metadata"]["labels"].get("spark-role") == "driver"]
    is_over = all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in found)
    return found if is_over and not observe.executors(pods) else []


def main():
    make_account()
    created = []
    threading.Thread(target=observe.follow, args=(created,), daemon=True).start()
    submit = Path(__file__).with_name("submit.sh")
    code = subprocess.run(["sh", submit, "--cluster", *sys.argv[1:]], check=False).returncode
    until = time.monotonic() + SECONDS_MAX
    while not (ended := drivers()) and time.monotonic() < until and not code:
        time.sleep(0.5)
    text = ""
    for driver in ended:
        with API.open("GET", f"{kube.PODS}/{driver['metadata']['name']}/log") as log:
            text += log.read().decode(errors="replace")
    print(text, flush=True)
    phases = [driver["status"]["phase"] for driver in ended]
    if code or phases != ["Succeeded"]:
        sys.exit(f"cluster: spark-submit ended with {code}, the driver's pod with its executors gone: {phases}")
    owner = ended[0]["metadata"]["uid"]
    wrong = [row for row in map(observe.row, created) if row[1] != "posse"]
    wrong += [pod["metadata"]["name"] for pod in created
              if [one["uid"] for one in pod["metadata"].get("ownerReferences", [])] != [owner]]
    wrong += [line for line in text.splitlines() if "is forbidden" in line]
    if not created or wrong:
        sys.exit(f"cluster: {len(created)} executors, wrong: {wrong}")
    print(f"all {len(created)} executors created by posse, owned by the driver's pod, none left behind", flush=True)


main()
