"""A pod's life through kr8s, with the kubeconfig that `posse dev` wrote."""

import json
import os
import socket

import kr8s
from kr8s.objects import Pod

NAMESPACE = os.environ["NS"]
api = kr8s.api(kubeconfig=os.environ["DEV_KUBECONFIG"], namespace=NAMESPACE)


def check(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


with open(os.environ["SERVED"]) as file:
    pod = Pod(json.load(file), namespace=NAMESPACE, api=api)
check("before", list(api.get("pods", namespace=NAMESPACE)), [])
pod.create()
for event, seen in api.watch("pods", namespace=NAMESPACE):
    ready = [c["status"] for c in seen.status.get("conditions", []) if c["type"] == "Ready"]
    if event == "MODIFIED" and ready == ["True"]:
        break
check("listed", [p.name for p in api.get("pods", namespace=NAMESPACE, label_selector="app=served")], ["served"])
pod.refresh()
check("log", list(pod.logs(follow=False)), ["begun"])
done = pod.exec(["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
check("exec", (done.stdout, done.stderr, done.returncode), (b"out\n", b"err\n", 7))
with pod.portforward(remote_port=8080, local_port="auto") as port:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"ping")
        check("port", client.recv(99), b"got ping")
pod.delete()
pod.wait("delete")
check("after", pod.exists(), False)
print("kr8s ok")
