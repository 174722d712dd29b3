"""Sums squares with executors that outlive the driver's pod: they tell the next driver what is done."""
import json
import os
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_UNIX, socket

from signed import is_signed, sign

PARTS, BYTES_MAX = range(30), 1 << 16
results, holds, lost, changed = {}, {}, set(), threading.Condition()  # holds: executor -> its part

def get(path):
    posse = HTTPConnection("posse")
    posse.sock = socket(AF_UNIX)
    posse.sock.connect(os.environ["POSSE_CONTROL"].removeprefix("unix:"))
    posse.request("GET", path)
    return posse.getresponse()

def next_part(executor, done, nonce):
    """What an executor has done counts, whichever driver asked for it. None: it must ask again."""
    if executor in lost:
        return None
    results.update(done)
    awaited.discard(executor)
    if str(holds.get(executor)) in results:
        del holds[executor]
    todo = [part for part in PARTS if str(part) not in results and part not in holds.values()]
    if executor not in holds and todo and not awaited:  # before that, nobody knows what is done
        holds[executor] = todo[0]
        print(json.dumps({"what": "begun", "executor": executor, "part": todo[0]}), flush=True)
    return holds.get(executor)

class Door(BaseHTTPRequestHandler):
    def do_POST(self):
        said = self.rfile.read(min(int(self.headers["Content-Length"]), BYTES_MAX))
        if not is_signed(signature := self.headers["Signature"], said):
            return self.send_error(403)
        with changed:
            answer = json.dumps(next_part(**json.loads(said))).encode()
            changed.notify()
        self.send_response(200)
        self.send_header("Signature", sign(signature.encode(), answer))
        self.end_headers()
        self.wfile.write(answer)

def follow():
    for event in map(json.loads, filter(bytes.strip, get("/v1/events?follow=true"))):
        if event["event"] == "executor_lost":
            with changed:  # its part goes to another one
                lost.add(event["executor"])
                awaited.discard(event["executor"])
                holds.pop(event["executor"], None)
        elif event["event"] == "adopted":
            print(json.dumps({"what": "adopted", "executors": event["executors"]}), flush=True)

there = json.load(get("/v1/executors"))["executors"]
awaited = {one["id"] for one in there if one["state"] in ("pending", "running")}
server = ThreadingHTTPServer((os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"])), Door)
for body in (follow, server.serve_forever):
    threading.Thread(target=body, daemon=True).start()
with changed:
    changed.wait_for(lambda: len(results) == len(PARTS))
print(json.dumps({"what": "end", "sum": sum(results.values())}), flush=True)
