"""Spot nodes on real nodes: the node of some executors ends after the map stage, and Spark moves their shuffle files to others.

spot.py FOLDER [drain] [shutdown]: by `kubectl drain`, and by a graceful shutdown of the node, of which its kubelet is told by
logind.py. How many map tasks ran again is counted. FOLDER, $KUBECONFIG, $POSSE and the images are those of ../shuffle/nodes.py,
on both nodes. Exit code 77: something is missing.
"""

import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "shuffle"), str(HERE)]
import check
import kube
import nodes

SPOT = nodes.OTHER
N_EXECUTORS = 4
GRACE_SECONDS = 120
# What the kubelet gives to pods, of which critical pods get the last part.
SHUTDOWN_SECONDS, CRITICAL_SECONDS = 100, 5
CANNOT = 77


def write_template(path):
    """Executors on both nodes, half of them on each."""
    both = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [nodes.NODE, SPOT]}]
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
              "labelSelector": {"matchLabels": {"spark-role": "executor"}}}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": both}]}}
    spec = {"affinity": {"nodeAffinity": affinity}, "topologySpreadConstraints": [spread], "containers": [{"name": "spark"}]}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}), encoding="utf-8")


def executors_on_spot(application):
    pods = nodes.API.get(f"{kube.PODS}?labelSelector=posse.dev/app={application.name},spark-role=executor")["items"]
    return {int(pod["metadata"]["labels"]["spark-exec-id"]) for pod in pods if pod["spec"].get("nodeName") == SPOT
            and pod["status"].get("phase") == "Running"}


def run(folder, name, end_node, reasons):
    """Runs app.py, ends the node after the map stage, and says whether all is as it should be."""
    write_template(folder / f"{name}.yaml")
    application = nodes.Application(folder, name, "4.3.0", {
        "spark.kubernetes.executor.podTemplateFile": f"/check/{name}.yaml",
        "spark.kubernetes.executor.terminationGracePeriodSeconds": GRACE_SECONDS,
        "spark.executor.instances": N_EXECUTORS,
        "spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true", "spark.storage.decommission.rddBlocks.enabled": "true",
    }, {"N_EXECUTORS": str(N_EXECUTORS), "LOST_AT": f"/check/{name}/lost"})
    application.submit()
    application.wait_for_map_stage()
    lost = executors_on_spot(application)
    since = time.monotonic()
    undo = end_node()
    nodes.wait_until("the executors to be gone from the node", lambda: not executors_on_spot(application))
    seconds = time.monotonic() - since
    # Renamed, so that the application does not read a part of it.
    told = application.folder / "lost.new"
    told.write_text(json.dumps(sorted(lost)), encoding="utf-8")
    told.rename(application.folder / "lost")
    undo()
    application.running()
    code, again = application.end()
    by_lost = sum(executor in lost for executor in check.map_executors(application.spark_events))
    why = lost_reasons(application)
    print(f"shuffle: {name}: {len(lost)} of {N_EXECUTORS} executors ended with their node in {seconds:.0f} s ({why}), which had run "
          f"{by_lost} map tasks: {again} of {check.MAPS} map tasks ran again", flush=True)
    is_spread = 0 < len(lost) < N_EXECUTORS and by_lost > 0
    return code == 0 and is_spread and again == 0 and set(why) == lost and set(why.values()) <= reasons


def lost_reasons(application):
    """Why posse lost executors, by their numbers."""
    events = map(json.loads, application.events.read_text(encoding="utf-8").splitlines())
    return {event["executor"]: event["reason"] for event in events if event["event"] == "executor_lost"}


def drain():
    nodes.kubectl("drain", SPOT, "--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={nodes.SECONDS_MAX}s")
    return lambda: nodes.kubectl("uncordon", SPOT)


def check_drain(folder):
    # Before condition DisruptionTarget (1.25) an eviction looks like a deletion.
    return run(folder, "drain", drain, {"evicted", "deleted"})


def check_shutdown(folder):
    try:
        from logind import Logind
    except ImportError:
        print("spark: NOT TESTED: python3-jeepney is missing", file=sys.stderr)
        sys.exit(CANNOT)
    logind, kubelet = Logind(folder), nodes.Kubelet(SPOT)
    try:
        kubelet.restart(f"{kubelet.before}shutdownGracePeriod: {SHUTDOWN_SECONDS}s\n"
                        f"shutdownGracePeriodCriticalPods: {CRITICAL_SECONDS}s\n", DBUS_SYSTEM_BUS_ADDRESS=logind.address)
        nodes.wait_until("the kubelet to hold up shutdowns", logind.is_held)
        nodes.wait_until("the node to be ready", kubelet.is_ready)

        def shut_down():
            logind.prepare(True)
            nodes.wait_until("the kubelet to let the machine go", lambda: not logind.is_held())
            return lambda: logind.prepare(False)

        # An executor that has decommissioned itself ends with 0. If the kubelet sees that before it has marked the pod, the
        # pod has completed: no budget is charged either way.
        return run(folder, "shutdown", shut_down, {"node_shutdown", "completed"})
    finally:
        kubelet.restart(kubelet.before)
        logind.end()
        nodes.wait_until("the node to be ready again", kubelet.is_ready)


CHECKS = {"drain": check_drain, "shutdown": check_shutdown}


def main():
    folder = Path(sys.argv[1]).resolve()
    nodes.prepare(folder)
    results = [CHECKS[name](folder) for name in sys.argv[2:] or CHECKS]
    if not all(results):
        sys.exit(f"spark: wrong; the logs are in {folder}")


main()
