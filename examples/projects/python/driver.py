"""Hands out tasks to the workers and prints the sum of their results: driver.py HOST PORT"""

import json
import sys
from collections import deque
from http.server import BaseHTTPRequestHandler, HTTPServer

from signed import is_signed, sign

BYTES_MAX = 1 << 20  # of a message
tasks = deque(range(1, 101))  # the tasks without a result; put your own here
results = {}


class Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds: a worker that hangs in a call must not block the others
    log_message = lambda *_: None

    def do_POST(self):
        """A worker sends the result of its task, if it has one. The answer is its next task, or null."""
        text = self.rfile.read(min(int(self.headers["Content-Length"]), BYTES_MAX))
        signature = self.headers["Signature"]
        if not is_signed(signature, text):
            return self.send_error(403, "no worker of this run")
        said = json.loads(text)
        if said["task"] in tasks:
            tasks.remove(said["task"])
            results[said["task"]] = said["result"]
        # The task at the front was handed out longest ago. It comes again while it has no result, so
        # the task of a lost worker goes to another one.
        tasks.rotate(-1)
        body = json.dumps(tasks[-1] if tasks else None).encode()
        self.send_response(200)
        self.send_header("Signature", sign(signature.encode(), body))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = HTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
while tasks:
    server.handle_request()
print("sum of squares:", sum(results.values()), flush=True)
