"""Runs each command of a file on a worker and prints what it printed: driver.py HOST PORT FILE

Exit code 1: a command failed three times.
"""

import json
import sys
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6

from losses import Losses
from signed import BYTES_MAX, Bounded, is_signed, sign

FAILURES_MAX = 3
with open(sys.argv[3]) as file:
    lines = [line.strip() for line in file]
commands = [line for line in lines if line and not line.startswith("#")]
todo, failures, codes = deque(range(len(commands))), Counter(), {}
holds = {}  # executor -> the number of the command that it runs, and which beginning this is
n_begun = 0


def end_try(executor, code, has_failed):
    """The executor runs its command no more. A command without an exit code was lost with it."""
    number, _ = holds.pop(executor)
    failures[number] += has_failed
    if code == 0 or failures[number] >= FAILURES_MAX:
        codes[number] = code
    else:
        todo.append(number)
    if code != 0:
        print(f"{'failed' if has_failed else 'lost'}: {commands[number]} ({code})", file=sys.stderr, flush=True)


def answer(said):
    """A worker has ended its command, or has none. Returns its next command, or None."""
    global n_begun
    executor = said["executor"]
    # A message that comes again, by somebody who has read it, names a beginning that is over.
    if executor in holds and said["ended"] == holds[executor][1]:
        print(said["output"], end="", flush=True)
        end_try(executor, said["code"], said["code"] != 0)
    # What was sent before a loss may come after it.
    if executor not in holds and todo and executor not in losses.lost:
        n_begun += 1
        holds[executor] = (todo.popleft(), n_begun)
    if executor not in holds:
        return None
    number, nth = holds[executor]
    return {"try": nth, "command": commands[number]}


class Handler(Bounded, BaseHTTPRequestHandler):
    log_message = lambda *_: None

    def do_POST(self):
        text = self.rfile.read(min(int(self.headers["Content-Length"]), BYTES_MAX))
        signature = self.headers["Signature"]
        if not is_signed(signature, text):
            return self.send_error(403, "no worker of this run")
        body = json.dumps(answer(json.loads(text))).encode()
        self.send_response(200)
        self.send_header("Signature", sign(signature.encode(), body))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer.address_family = AF_INET6 if ":" in sys.argv[1] else AF_INET
server = HTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.timeout = 1  # seconds: how long to wait for a worker before looking for lost ones
losses = Losses()
while len(codes) < len(commands):
    server.handle_request()
    for executor in [executor for executor in holds if executor in losses.lost]:
        end_try(executor, None, has_failed=losses.lost[executor])
    if not losses.is_alive():
        sys.exit("posse's events have ended, so nobody knows which workers are lost")
n_ok = list(codes.values()).count(0)
print(f"{n_ok} of {len(commands)} commands succeeded", flush=True)
sys.exit(n_ok < len(commands))
