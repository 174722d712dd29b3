"""Runs ../shuffle/app.py, drains the node of all its executors after the map stage, and counts the map tasks that ran again.

drained.py [notice] FOLDER NODE COMMAND...: the command runs the application; FOLDER/spark-events gets its event log. `notice`: the
cloud takes a spot node back. Its node termination handler cordons and taints the node, then drains it, and the machine is gone
two minutes after the notice.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shuffle"))
import check
import kube

API = kube.Api("example-drained")
N_EXECUTORS = 2
SECONDS_MAX = 300
# What the cloud gives a spot node, and when the handler drains it: meanwhile its executors work, and no other one may come.
NOTICE_SECONDS, CORDONED_SECONDS = 120, 5
# As aws-node-termination-handler sets it.
TAINT = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}


def executors_on(node):
    pods = API.get(f"{kube.PODS}?labelSelector=spark-role=executor")["items"]
    return {int(pod["metadata"]["labels"]["spark-exec-id"]): pod["metadata"]["name"] for pod in pods
            if pod["spec"].get("nodeName") == node}


def main():
    is_notice = sys.argv[1] == "notice"
    folder, node, *command = sys.argv[1 + is_notice:]
    folder = Path(folder)
    (folder / "spark-events").mkdir()
    application = subprocess.Popen(command, env={**os.environ, "KILL_AT": f"{folder}/mapped", "LOST_AT": f"{folder}/lost"})
    check.wait_until("the map stage", lambda: (folder / "mapped").exists() or application.poll() is not None, SECONDS_MAX)
    lost = executors_on(node)
    # What `kubectl drain` does.
    since = time.monotonic()
    spec = {"unschedulable": True, **({"taints": [TAINT]} if is_notice else {})}
    API.call("PATCH", f"/api/v1/nodes/{node}", {"spec": spec}, "application/merge-patch+json")
    if is_notice:
        time.sleep(CORDONED_SECONDS)
        if executors_on(node) != lost:
            sys.exit(f"drained: the executors on the cordoned node are {executors_on(node)}, and were {lost}")
    for name in lost.values():
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
        API.call("POST", f"{kube.PODS}/{name}/eviction", eviction)
    check.wait_until("the end of the executors", lambda: not executors_on(node), SECONDS_MAX)
    seconds = time.monotonic() - since
    if is_notice:
        API.call("DELETE", f"/api/v1/nodes/{node}")
    # Renamed, so that the application does not read a part of it.
    (folder / "lost.new").write_text(json.dumps(sorted(lost)), encoding="utf-8")
    (folder / "lost.new").rename(folder / "lost")
    code = application.wait(SECONDS_MAX)
    again = check.map_tasks(folder / "spark-events") - check.MAPS
    print(f"drained: {len(lost)} of {N_EXECUTORS} executors ended in {seconds:.0f} s: {again} of {check.MAPS} map tasks ran again", flush=True)
    if code or len(lost) != N_EXECUTORS or again or is_notice and seconds > NOTICE_SECONDS:
        sys.exit(f"drained: wrong; the application ended with {code}")


main()
