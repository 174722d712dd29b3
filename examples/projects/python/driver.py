"""Hands out tasks to the workers and prints the sum of their results: driver.py HOST PORT"""

import json
import sys
from collections import deque
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6

from losses import Losses
from signed import BYTES_MAX, Bounded, is_signed, sign

todo = deque(range(1, 101))  # put your own tasks here
n_tasks, results = len(todo), []
holds = {}  # executor -> its task, and which beginning this is
n_begun = 0


def answer(said):
    """A worker sends the result of its task, if it has one. Returns its next task, or None."""
    global n_begun
    executor = said["executor"]
    # A message that comes again, by somebody who has read it, names a beginning that is over.
    if executor in holds and said["ended"] == holds[executor][1]:
        del holds[executor]
        results.append(said["result"])
    # What was sent before a loss may come after it.
    if executor not in holds and todo and executor not in losses.lost:
        n_begun += 1
        holds[executor] = (todo.popleft(), n_begun)
    return holds.get(executor)


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
while len(results) < n_tasks:
    server.handle_request()
    for executor in [executor for executor in holds if executor in losses.lost]:
        todo.append(holds.pop(executor)[0])
    if not losses.is_alive():
        sys.exit("posse's events have ended, so nobody knows which workers are lost")
print("sum of squares:", sum(results), flush=True)
