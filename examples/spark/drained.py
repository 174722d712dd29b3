"""Runs ../shuffle/app.py, drains the node of all its executors after the map stage, and counts the map tasks that ran again.

drained.py FOLDER NODE COMMAND...: the command runs the application; FOLDER/spark-events gets its event log.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shuffle"))
import check
import kube

API = kube.Api("example-drained")
N_EXECUTORS = 2
SECONDS_MAX = 300


def executors_on(node):
    pods = API.get(f"{kube.PODS}?labelSelector=spark-role=executor")["items"]
    return {int(pod["metadata"]["labels"]["spark-exec-id"]): pod["metadata"]["name"] for pod in pods
            if pod["spec"].get("nodeName") == node}


def main():
    folder, node, *command = sys.argv[1:]
    folder = Path(folder)
    (folder / "spark-events").mkdir()
    application = subprocess.Popen(command, env={**os.environ, "KILL_AT": f"{folder}/mapped", "LOST_AT": f"{folder}/lost"})
    check.wait_until("the map stage", lambda: (folder / "mapped").exists() or application.poll() is not None, SECONDS_MAX)
    lost = executors_on(node)
    # What `kubectl drain` does.
    API.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, "application/merge-patch+json")
    for name in lost.values():
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
        API.call("POST", f"{kube.PODS}/{name}/eviction", eviction)
    check.wait_until("the end of the executors", lambda: not executors_on(node), SECONDS_MAX)
    # Renamed, so that the application does not read a part of it.
    (folder / "lost.new").write_text(json.dumps(sorted(lost)), encoding="utf-8")
    (folder / "lost.new").rename(folder / "lost")
    code = application.wait(SECONDS_MAX)
    again = check.map_tasks(folder / "spark-events") - check.MAPS
    print(f"drained: {len(lost)} of {N_EXECUTORS} executors: {again} of {check.MAPS} map tasks ran again", flush=True)
    if code or len(lost) != N_EXECUTORS or again:
        sys.exit(f"drained: wrong; the application ended with {code}")


main()
