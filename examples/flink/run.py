"""Runs the example with its own `posse`: one task manager, four, one of them killed, one again; checks the result.

Exit code 77: Flink is not installed as README.md says.
"""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from checks import Checks, free_port, listeners, posse_binary

N = 2_000_000
# A JVM starts slowly, and there are six of them.
SECONDS_MAX = 600
SUM = (N - 1) * N * (2 * N - 1) // 6


# A TLS server that waits for requests says nothing for this long.
SECONDS_SILENT = 2


def addresses(pids):
    """Where the processes listen, as IPv4 addresses and ports."""
    words = [address.split(":") for _, address in listeners(pids)]
    return sorted({(socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1]), int(port, 16)) for host, port in words})


def is_admitted(address, key=None):
    """The server reads a line that comes by TLS. `key`: its file with key and certificate."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    if key:
        client.load_cert_chain(key)
    try:
        with (socket.create_connection(address, timeout=SECONDS_SILENT) as plain,
              client.wrap_socket(plain, suppress_ragged_eofs=False) as connection):
            connection.sendall(b"\n")
            # A server that does not like the line ends the connection in the words of TLS.
            connection.recv(1)
            return True
    except TimeoutError:
        return True
    except OSError:
        return False


def keystore(pids):
    """The run's keystore, as the driver's environment names it."""
    for pid in pids:
        words = dict(word.split(b"=", 1) for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in word)
        if words.get(b"KEYSTORE", b"").startswith(b"/"):
            return words[b"KEYSTORE"].decode()
    raise LookupError("no process has a keystore")


def main():
    if not shutil.which("standalone-job.sh"):
        sys.exit(77)
    with Checks("flink", SECONDS_MAX) as checks:
        hurry, control, port = checks.folder / "hurry", f"unix:{checks.folder}/socket", free_port()
        configuration = checks.configuration(("6123", free_port()), ("8081", port), ("20000", N),
                                             ("/tmp/flink-sum", checks.folder / "sums"))
        run = checks.start(
            "posse", posse_binary(), "run", "--dev", "-f", configuration, "--instance", checks.instance, "--control", control,
            "--events", str(checks.folder / "events"), HURRY=str(hurry), FLINK_LOG_DIR=str(checks.folder))

        def ask(path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return json.load(answer)
            except OSError:
                return {}

        def working():
            """The task managers on which the source runs now."""
            jobs = [job["id"] for job in ask("/jobs").get("jobs", [])]
            vertices = ask(f"/jobs/{jobs[0]}").get("vertices", []) if jobs else []
            tasks = ask(f"/jobs/{jobs[0]}/vertices/{vertices[0]['id']}").get("subtasks", []) if vertices else []
            return {task["taskmanager-id"] for task in tasks if task["status"] == "RUNNING"}

        def scale(target):
            subprocess.run([posse_binary(), "scale", "--control", control, str(target)], check=True)

        checks.until("one task manager works", lambda: len(working()) == 1)
        scale(4)
        first = checks.until("four task managers work", lambda: len(found := working()) == 4 and found)
        checks.same("ports that other machines reach", checks.beyond_loopback(), [])
        pids, key = checks.processes(), str(checks.folder / "key.pem")
        subprocess.run(["openssl", "pkcs12", "-in", keystore(pids), "-passin", "pass:flink-keystore", "-nodes", "-out", key],
                       check=True, stderr=subprocess.DEVNULL)
        doors = [address for address in addresses(pids) if address[1] != port]
        # RPC, metrics and files of the JobManager; RPC, metrics and data of four task managers.
        checks.same("ports", len(doors), 15)
        checks.same("ports that admit a stranger", [address for address in doors if is_admitted(address)], [])
        checks.same("ports that admit who has the key", sum(is_admitted(address, key) for address in doors), 15)
        for pid in checks.processes("POSSE_EXECUTOR_ID=2"):
            os.kill(pid, signal.SIGKILL)
        checks.until("another task manager works beside three of them",
                     lambda: len(found := working()) == 4 and len(found - first) == 1)
        scale(1)
        checks.until("one task manager works again", lambda: len(working()) == 1)
        hurry.touch()
        checks.until("the end of the run", lambda: run.poll() is not None)
        sums = [int(line) for path in (checks.folder / "sums").rglob("part-*") for line in path.read_text().split()]
        checks.same("sums for the last digits of squares", len(sums), 6)
        checks.same("the sum", sum(sums), SUM)
        checks.same("the exit code", run.returncode, 0)
        lost = [(event["executor"], event["reason"]) for event in checks.events("executor_lost")]
        checks.same("lost", lost, [(2, "app_error")])


main()
