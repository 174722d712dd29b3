"""Which executor has which claim, and whether successors got the claims of the executors before them."""

import json
import sys
from datetime import datetime

import kube


def of_executors(api):
    """The claim of each executor's pod, by the executor's number."""
    found = {}
    for pod in api.get(kube.PODS)["items"]:
        names = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"].get("volumes", [])
                 if "persistentVolumeClaim" in volume]
        if names and "deletionTimestamp" not in pod["metadata"]:
            found[int(pod["metadata"]["labels"]["spark-exec-id"])] = names[0]
    return found


def check(before, after, events):
    """Ends the program if the two executors of `after` have not the claims of those of `before`. Prints how long that took,
    by the file of posse's events."""
    if len(set(before.values())) != 2 or set(after.values()) != set(before.values()):
        sys.exit(f"other volumes: {before}, then {after}")
    with open(events, encoding="utf-8") as file:
        told = [json.loads(line) for line in file if line.endswith("\n")]
    times = {(one["event"], one.get("executor")): datetime.fromisoformat(one["time"].replace("Z", "+00:00")) for one in told}
    new = {claim: executor for executor, claim in after.items()}
    waits = [times["executor_running", new[claim]] - times["executor_lost", executor]
             for executor, claim in before.items()]
    shown = " and ".join(f"{wait.total_seconds() * 1000:.0f} ms" for wait in sorted(waits))
    print(f"shuffle: from the loss to a successor that runs with the same volume: {shown}", flush=True)
