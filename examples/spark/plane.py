"""A real control plane on loopback: etcd and kube-apiserver of $KUBEBUILDER_ASSETS, and node.py.

plane.py FOLDER: writes all files there. FOLDER/kubeconfig appears when the server is ready.
FOLDER/audit.log says who wrote which pod. A TERM ends everything.
"""

import base64
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import kube

sys.path.append(str(Path(__file__).parents[1]))
from checks import free_ports

READY_SECONDS_MAX, END_SECONDS = 90, 1
AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [pods]}]
- level: None
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: real
contexts: [{{name: real, context: {{cluster: real, user: owner, namespace: default}}}}]
users: [{{name: owner, user: {{token: {token}}}}}]
clusters:
- name: real
  cluster: {{server: "{server}", certificate-authority-data: "{authority}"}}
"""


def main(folder):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    folder.mkdir(parents=True)
    started = []
    try:
        part = start_servers(folder, started)
        os.environ["KUBECONFIG"] = str(part)
        wait_until_ready(started)
        os.environ["KUBECONFIG"] = str(part.rename(folder / "kubeconfig"))
        start(folder, started, "node", sys.executable, Path(__file__).with_name("node.py"), folder / "pods")
        ended = os.wait()[0]
        sys.exit(f"plane: process {ended} ended: look at the logs in {folder}")
    finally:
        # The node ends its pods first. A server with open watches takes a minute to stop, so it is killed.
        for process in reversed(started):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()
            process.wait()


def start_servers(folder, started):
    assets, token = Path(os.environ["KUBEBUILDER_ASSETS"]), secrets.token_hex()
    etcd, peer, api = (f"127.0.0.1:{port}" for port in free_ports(3))
    (folder / "audit.yaml").write_text(AUDIT)
    (folder / "tokens").write_text(f'{token},owner,owner,"system:masters"\n')
    start(folder, started, "etcd", assets / "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync",
          f"--listen-client-urls=http://{etcd}", f"--advertise-client-urls=http://{etcd}",
          f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}",
          f"--initial-cluster=default=http://{peer}")
    # The server makes its own certificate. The key also signs tokens, which nobody uses here.
    start(folder, started, "kube-apiserver", assets / "kube-apiserver", f"--etcd-servers=http://{etcd}",
          "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={api.split(':')[1]}",
          f"--cert-dir={folder}", f"--token-auth-file={folder}/tokens", "--authorization-mode=RBAC",
          f"--service-account-key-file={folder}/apiserver.key",
          f"--service-account-signing-key-file={folder}/apiserver.key",
          "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
          "--disable-admission-plugins=ServiceAccount", f"--audit-policy-file={folder}/audit.yaml",
          f"--audit-log-path={folder}/audit.log", "--audit-log-maxsize=1000")
    # The key is written last.
    key = folder / "apiserver.key"
    wait_for("a certificate", started, lambda: key.exists() and "-----END" in key.read_text())
    authority = base64.b64encode((folder / "apiserver.crt").read_bytes()).decode()
    path = folder / "kubeconfig.part"
    path.write_text(KUBECONFIG.format(server=f"https://{api}", token=token, authority=authority))
    return path


def start(folder, started, name, *command):
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        started.append(subprocess.Popen(command, stdout=log, stderr=log))


def wait_until_ready(started):
    api = kube.Api("example-plane")

    def is_ready():
        with contextlib.suppress(urllib.error.URLError):
            return api.get("/api/v1/namespaces/default")

    wait_for("the namespace default", started, is_ready)


def wait_for(what, started, condition):
    until = time.monotonic() + READY_SECONDS_MAX
    while not condition():
        if time.monotonic() > until or any(process.poll() is not None for process in started):
            sys.exit(f"plane: no {what} in time: look at the logs")
        time.sleep(0.1)


main(Path(sys.argv[1]))
