"""Locality on four real nodes, two of which have the data of the tasks: how many executors of dynamic allocation are on these two,
if Spark does not name them, and if it does.

locality_on_nodes.py FOLDER. FOLDER, $KUBECONFIG, $POSSE and the images are those of ../shuffle/nodes.py, on all four nodes.
"""

import json
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "shuffle"), str(HERE)]
import kube
import nodes

WITH_DATA = ["node-2", "node-3"]
N_EXECUTORS = 4
STEP_SECONDS = 0.3


def nodes_of_executors(application):
    """Until the driver has ended: the node of each executor."""
    found = {}
    while application.driver.poll() is None:
        pods = nodes.API.get(f"{kube.PODS}?labelSelector=posse.dev/app={application.name},spark-role=executor")["items"]
        found |= {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}
        time.sleep(STEP_SECONDS)
    return list(found.values())


def run(folder, name, named):
    """Gives how many executors were on the nodes of the data, and how many there were."""
    template = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "spark"}]}}
    (folder / f"{name}.yaml").write_text(json.dumps(template), encoding="utf-8")
    application = nodes.Application(folder, name, "4.3.0", {
        "spark.kubernetes.executor.podTemplateFile": f"/check/{name}.yaml",
        "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": N_EXECUTORS,
        "spark.dynamicAllocation.shuffleTracking.enabled": "true", "spark.locality.wait": "0",
    }, {})
    application.submit(program=["/check/locality.py", ",".join(named)])
    found = nodes_of_executors(application)
    near = sum(node in WITH_DATA for node in found)
    print(f"locality: executors on the nodes of the data{', which Spark names' if named else ''}: {near} of {len(found)} "
          f"({', '.join(sorted(found))})", flush=True)
    if application.driver.returncode != 0:
        sys.exit(f"locality: the driver ended with {application.driver.returncode}; the logs are in {folder}")
    return near, len(found)


def main():
    folder = Path(sys.argv[1]).resolve()
    nodes.prepare(folder)
    shutil.copy(HERE / "locality.py", folder)
    run(folder, "nowhere", [])
    if run(folder, "near", WITH_DATA) != (N_EXECUTORS, N_EXECUTORS):
        sys.exit(f"locality: wrong; the logs are in {folder}")


main()
