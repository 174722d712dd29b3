"""What people do with the official Python client: pods, jobs, watches, a leader's Lease."""

import json
import logging
import os
import threading
import time

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from kubernetes.stream import stream

NAMESPACE = os.environ["NS"]
# The real server of these tests has no kubelet: pods run in name only, and Jobs never end.
RUNS = os.environ["SERVER"] == "embedded"
PATIENCE_S = 240

config.load_kube_config()
core, batch = client.CoreV1Api(), client.BatchV1Api()


def check(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def refused(code, reason, call, *args, **kwargs):
    """Calls, and takes the refusal that has to come."""
    try:
        call(*args, **kwargs)
    except ApiException as e:
        check("code", e.status, code)
        check("reason", json.loads(e.body)["reason"], reason)
        return e
    raise AssertionError(f"{call.__name__} was not refused")


def until(what, look):
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)


def discovery():
    check("versions", client.CoreApi().get_api_versions().versions, ["v1"])
    groups = client.ApisApi().get_api_versions().groups
    check("batch", [group.preferred_version.version for group in groups if group.name == "batch"], ["v1"])
    check("pods", [one.kind for one in core.get_api_resources().resources if one.name == "pods"], ["Pod"])
    assert client.VersionApi().get_code().git_version


def pod(name, script="sleep 600", **spec):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "py", "name": name}),
        spec=client.V1PodSpec(
            restart_policy="Never",
            termination_grace_period_seconds=1,
            containers=[client.V1Container(name="c", image="x", command=["sh", "-c", script])],
            **spec,
        ),
    )


def pods():
    created = core.create_namespaced_pod(NAMESPACE, pod("a"))
    check("phase", created.status.phase, "Pending")
    check("default", created.spec.dns_policy, "ClusterFirst")
    refused(409, "AlreadyExists", core.create_namespaced_pod, NAMESPACE, pod("a"))
    refused(422, "Invalid", core.create_namespaced_pod, NAMESPACE, pod("Not_A_Name"))
    refused(404, "NotFound", core.read_namespaced_pod, "nobody", NAMESPACE)
    seen = []
    for event in watch.Watch().stream(
        core.list_namespaced_pod, NAMESPACE, label_selector="name=a", timeout_seconds=PATIENCE_S
    ):
        seen.append((event["type"], event["object"].status.phase))
        if event["object"].status.phase == "Running":
            break
    check("last seen", seen[-1][1], "Running")
    check("first seen", seen[0][0], "ADDED")
    # A dict is a strategic patch for this client, a list is a JSON patch.
    body = {"metadata": {"annotations": {"k": "v"}}, "spec": {"containers": [{"name": "c", "image": "y"}]}}
    patched = core.patch_namespaced_pod("a", NAMESPACE, body)
    check("image", [c.image for c in patched.spec.containers], ["y"])
    check("command kept", patched.spec.containers[0].command, ["sh", "-c", "sleep 600"])
    patched = core.patch_namespaced_pod(
        "a", NAMESPACE, [{"op": "add", "path": "/metadata/labels/more", "value": "x"}]
    )
    check("label", patched.metadata.labels["more"], "x")
    listed = core.list_namespaced_pod(NAMESPACE, label_selector="app=py", field_selector="metadata.name=a")
    check("listed", [p.metadata.name for p in listed.items], ["a"])
    core.delete_namespaced_pod("a", NAMESPACE, grace_period_seconds=1)
    until("the pod to go", lambda: not core.list_namespaced_pod(NAMESPACE, label_selector="name=a").items)


def logs():
    if not RUNS:
        return
    script = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
    core.create_namespaced_pod(NAMESPACE, pod("talks", script))
    until("a start", lambda: core.read_namespaced_pod_status("talks", NAMESPACE).status.phase != "Pending")
    lines = list(watch.Watch().stream(core.read_namespaced_pod_log, name="talks", namespace=NAMESPACE))
    check("followed", lines, [f"line {i}" for i in range(1, 6)])
    check("tail", core.read_namespaced_pod_log("talks", NAMESPACE, tail_lines=1), "line 5\n")
    until("the end", lambda: core.read_namespaced_pod("talks", NAMESPACE).status.phase == "Succeeded")
    ended = core.read_namespaced_pod("talks", NAMESPACE).status.container_statuses[0].state.terminated
    check("ended", (ended.exit_code, ended.reason), (0, "Completed"))
    core.delete_namespaced_pod("talks", NAMESPACE)


def commands():
    if not RUNS:
        return
    core.create_namespaced_pod(NAMESPACE, pod("does", "sleep 60"))
    until("a start", lambda: core.read_namespaced_pod_status("does", NAMESPACE).status.phase == "Running")

    def run(script, **options):
        command = ["sh", "-c", script]
        call = core.connect_get_namespaced_pod_exec
        streams = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
        socket = stream(call, "does", NAMESPACE, command=command, _preload_content=False, **streams)
        if options.get("stdin"):
            socket.write_stdin("to it\n")
        socket.run_forever(timeout=PATIENCE_S)
        return socket.read_stdout(), socket.read_stderr(), socket.returncode

    check("output", run("echo out; echo err >&2; exit 7"), ("out\n", "err\n", 7))
    check("input", run("read line; echo got $line", stdin=True), ("got to it\n", "", 0))
    # The terminal's echo of the input may come before or after the shell's output.
    check("terminal", sorted(run("test -t 0 && echo yes", stdin=True, tty=True)[0].split()), ["it", "to", "yes"])
    core.delete_namespaced_pod("does", NAMESPACE, grace_period_seconds=0)


def jobs():
    template = client.V1PodTemplateSpec(
        spec=client.V1PodSpec(
            restart_policy="Never",
            containers=[client.V1Container(name="c", image="x", command=["sh", "-c", "true"])],
        )
    )
    job = client.V1Job(
        metadata=client.V1ObjectMeta(generate_name="job-"),
        spec=client.V1JobSpec(template=template, completions=2, parallelism=2),
    )
    made = batch.create_namespaced_job(NAMESPACE, job)
    name = made.metadata.name
    check("generated", name.startswith("job-") and len(name) == 9, True)
    check("backoff", made.spec.backoff_limit, 6)
    # Servers before 1.27 call the label `controller-uid`.
    selector = made.spec.selector.match_labels
    check("selector", list(selector.values()), [made.metadata.uid])

    def own():
        return core.list_namespaced_pod(NAMESPACE, label_selector=f"job-name={name}").items

    until("two pods", lambda: len(own()) == 2)
    check("owner", {p.metadata.owner_references[0].uid for p in own()}, {made.metadata.uid})
    if RUNS:
        for event in watch.Watch().stream(
            batch.list_namespaced_job, NAMESPACE, field_selector=f"metadata.name={name}", timeout_seconds=PATIENCE_S
        ):
            if event["object"].status.succeeded == 2 and event["object"].status.completion_time:
                break
        done = batch.read_namespaced_job_status(name, NAMESPACE)
        check("condition", [(c.type, c.status) for c in done.status.conditions or []][-1], ("Complete", "True"))
    batch.delete_namespaced_job(name, NAMESPACE, propagation_policy="Background")
    until("the pods to go", lambda: not own())
    refused(404, "NotFound", batch.read_namespaced_job, name, NAMESPACE)


def config_maps():
    for i in range(5):
        body = client.V1ConfigMap(
            metadata=client.V1ObjectMeta(name=f"cm-{i}", labels={"app": "py"}), data={"n": str(i)}
        )
        core.create_namespaced_config_map(NAMESPACE, body)
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, label_selector="app=py", limit=2, _continue=token)
        names += [c.metadata.name for c in page.items]
        token = page.metadata._continue
        if not token:
            break
    check("pages", names, [f"cm-{i}" for i in range(5)])
    first = core.read_namespaced_config_map("cm-0", NAMESPACE)
    stale = core.read_namespaced_config_map("cm-0", NAMESPACE)
    first.data["n"] = "ten"
    core.replace_namespaced_config_map("cm-0", NAMESPACE, first)
    refused(409, "Conflict", core.replace_namespaced_config_map, "cm-0", NAMESPACE, stale)
    dry = core.patch_namespaced_config_map("cm-0", NAMESPACE, {"data": {"n": None}}, dry_run="All")
    check("dry run", dry.data, None)
    check("kept", core.read_namespaced_config_map("cm-0", NAMESPACE).data, {"n": "ten"})
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="app=py")
    check("gone", core.list_namespaced_config_map(NAMESPACE, label_selector="app=py").items, [])
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="s"), string_data={"k": "v"})
    check("secret", core.create_namespaced_secret(NAMESPACE, secret).data, {"k": "dg=="})


def watches():
    """A watch goes on where another one ended, and learns that history is gone."""
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    for name in ("w-0", "w-1"):
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name}})
    first = watch.Watch()
    for event in first.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=version):
        check("event", (event["type"], event["object"].metadata.name), ("ADDED", "w-0"))
        first.stop()
    core.delete_namespaced_config_map("w-0", NAMESPACE)
    seen = []
    again = watch.Watch()
    for event in again.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=first.resource_version
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            again.stop()
    check("resumed", seen, [("ADDED", "w-1"), ("DELETED", "w-0")])
    if not RUNS:
        return  # the real server forgets after minutes, not after 100 events
    # The first version of all is long gone, once a little has happened.
    for i in range(150):
        core.patch_namespaced_config_map("w-1", NAMESPACE, {"data": {"n": str(i)}})
    try:
        for event in watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version="1", timeout_seconds=10
        ):
            raise AssertionError(f"told of {event['object'].metadata.name}")
        raise AssertionError("no 410")
    except ApiException as e:
        check("gone", e.status, 410)


def leaders():
    """One leads and renews; when it stops, the other takes over."""
    leases = client.CoordinationV1Api()
    logging.getLogger("leaderelection").disabled = True
    led = {"one": threading.Event(), "two": threading.Event()}
    stop = threading.Event()

    def candidate(name):
        def lead():
            led[name].set()
            stop.wait(PATIENCE_S)
            raise RuntimeError("enough")  # how this library's leader steps down

        lock = LeaseLock("leader", NAMESPACE, name)
        settings = electionconfig.Config(
            lock, lease_duration=4, renew_deadline=3, retry_period=1,
            onstarted_leading=lead, onstopped_leading=lambda: None,
        )
        return threading.Thread(target=leaderelection.LeaderElection(settings).run, daemon=True)

    one, two = candidate("one"), candidate("two")
    one.start()
    assert led["one"].wait(PATIENCE_S), "nobody leads"
    two.start()
    first = leases.read_namespaced_lease("leader", NAMESPACE).spec
    check("holder", first.holder_identity, "one")
    until("a renewal", lambda: leases.read_namespaced_lease("leader", NAMESPACE).spec.renew_time > first.renew_time)
    assert not led["two"].is_set(), "two lead at once"
    stop.set()
    assert led["two"].wait(PATIENCE_S), "nobody follows"
    check("holder", leases.read_namespaced_lease("leader", NAMESPACE).spec.holder_identity, "two")
    one.join(PATIENCE_S)
    two.join(PATIENCE_S)


if __name__ == "__main__":
    for part in (discovery, pods, logs, commands, jobs, config_maps, watches, leaders):
        part()
        print(part.__name__, "ok")
