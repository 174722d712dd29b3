"""The same cluster through lightkube, which shares no code with the official client."""

import os

from lightkube import ApiError, Client, KubeConfig
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace, Node, Pod, Secret
from lightkube.types import CascadeType, PatchType

NAMESPACE = os.environ["NS"]
# The real server of these tests has no kubelet: pods run in name only, and Jobs never end.
RUNS = os.environ["SERVER"] == "embedded"
# That of the embedded cluster is the file that `posse dev` wrote.
config = KubeConfig.from_file(os.environ.get("DEV_KUBECONFIG", os.environ["KUBECONFIG"]))
client = Client(config, namespace=NAMESPACE, field_manager="lightkube")


def check(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def refused(code, reason, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ApiError as e:
        check("refusal", (e.status.code, e.status.reason), (code, reason))
        return
    raise AssertionError(f"{call.__name__} was not refused")


def spec(script):
    return PodSpec(
        restartPolicy="Never",
        terminationGracePeriodSeconds=1,
        containers=[Container(name="c", image="x", command=["sh", "-c", script])],
    )


def pods():
    wanted = Pod(metadata=ObjectMeta(name="a", labels={"app": "lk"}), spec=spec("sleep 600"))
    made = client.create(wanted)
    check("defaults", (made.spec.schedulerName, made.status.qosClass), ("default-scheduler", "BestEffort"))
    ready = client.wait(Pod, "a", for_conditions=["Ready"])
    check("phase", ready.status.phase, "Running")
    refused(409, "AlreadyExists", client.create, wanted)
    refused(404, "NotFound", client.get, Pod, "nobody")
    check("label", [p.metadata.name for p in client.list(Pod, labels={"app": ["lk", "other"]})], ["a"])
    check("field", [p.metadata.name for p in client.list(Pod, fields={"status.phase": "Failed"})], [])
    image = {"spec": {"containers": [{"name": "c", "image": "y"}]}}
    check("strategic", client.patch(Pod, "a", image).spec.containers[0].image, "y")
    labels = {"metadata": {"labels": {"app": None, "b": "c"}}}
    check("merge", client.patch(Pod, "a", labels, patch_type=PatchType.MERGE).metadata.labels, {"b": "c"})
    step = [{"op": "remove", "path": "/metadata/labels/b"}]
    check("json", client.patch(Pod, "a", step, patch_type=PatchType.JSON).metadata.labels, None)
    version = client.get(Pod, "a").metadata.resourceVersion
    client.delete(Pod, "a", grace_period=1)
    for what, told in client.watch(Pod, fields={"metadata.name": "a"}, resource_version=version):
        if what == "DELETED":
            check("told", told.metadata.name, "a")
            break
    refused(404, "NotFound", client.get, Pod, "a")


def logs():
    if not RUNS:
        return
    client.create(Pod(metadata=ObjectMeta(name="talks"), spec=spec("for i in 1 2 3; do echo $i; sleep 0.2; done")))
    client.wait(Pod, "talks", for_conditions=["Ready"])
    check("followed", [line.rstrip("\n") for line in client.log("talks", follow=True)], ["1", "2", "3"])
    check("tail", list(client.log("talks", tail_lines=1)), ["3\n"])
    client.delete(Pod, "talks")


def jobs():
    job = Job(metadata=ObjectMeta(name="j"), spec=JobSpec(template=PodTemplateSpec(spec=spec("true"))))
    check("completions", client.create(job).spec.completions, 1)
    if RUNS:
        done = client.wait(Job, "j", for_conditions=["Complete"], raise_for_conditions=["Failed"])
        check("succeeded", done.status.succeeded, 1)
        told = {e.reason for e in client.list(Event, fields={"involvedObject.name": "j"})}
        check("events", {"SuccessfulCreate", "Completed"} <= told, True)
    version = client.get(Job, "j").metadata.resourceVersion
    client.delete(Job, "j", cascade=CascadeType.FOREGROUND)
    for what, _ in client.watch(Job, fields={"metadata.name": "j"}, resource_version=version):
        if what == "DELETED":
            break
    check("pods gone", [p.metadata.name for p in client.list(Pod, labels={"job-name": "j"})], [])


def objects():
    client.create(ConfigMap(metadata=ObjectMeta(name="c"), data={"a": "b"}))
    found = client.get(ConfigMap, "c")
    found.data["c"] = "d"
    check("replaced", client.replace(found).data, {"a": "b", "c": "d"})
    found.metadata.resourceVersion = "1"
    refused(409, "Conflict", client.replace, found)
    client.create(Secret(metadata=ObjectMeta(name="s"), stringData={"k": "v"}))
    check("secret", client.get(Secret, "s").data, {"k": "dg=="})
    check("pages", len(list(client.list(ConfigMap, chunk_size=1))) >= 1, True)
    check("namespace", client.get(Namespace, NAMESPACE).status.phase, "Active")
    check("nodes", len(list(client.list(Node))) >= 1, True)
    client.create(Lease(metadata=ObjectMeta(name="l")))
    client.deletecollection(Lease)
    check("leases", list(client.list(Lease)), [])
    check("everywhere", "c" in [c.metadata.name for c in client.list(ConfigMap, namespace="*")], True)


def apply():
    def give(data, manager, force=False):
        body = ConfigMap(metadata=ObjectMeta(name="applied"), data=data)
        return client.apply(body, field_manager=manager, force=force).data

    check("first", give({"a": "1"}, "one"), {"a": "1"})
    check("second", give({"b": "2"}, "two"), {"a": "1", "b": "2"})
    refused(409, "Conflict", give, {"a": "9"}, "two")
    check("forced", give({"a": "9"}, "two", force=True), {"a": "9"})


if __name__ == "__main__":
    for part in (pods, logs, jobs, objects, apply):
        part()
        print(part.__name__, "ok")
