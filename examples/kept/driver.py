"""Sums squares with executors that outlive the driver's pod: they tell the next driver what is done."""
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6

from losses import Losses
from signed import BYTES_MAX, Bounded, is_signed, sign

PARTS = range(30)
results, holds = {}, {}  # holds: executor -> its part

def log(what, **facts):
    print(json.dumps({"what": what, **facts}), flush=True)

def next_part(executor, done, nonce):
    """What an executor has done counts, whichever driver asked for it. None: it must ask again."""
    if executor in losses.lost:
        return None
    results.update(done)
    awaited.discard(executor)
    if str(holds.get(executor)) in results:
        del holds[executor]
    todo = [part for part in PARTS if str(part) not in results and part not in holds.values()]
    if executor not in holds and todo and not awaited:  # before that, nobody knows what is done
        holds[executor] = todo[0]
        log("begun", executor=executor, part=todo[0])
    return holds.get(executor)

class Door(Bounded, BaseHTTPRequestHandler):
    log_message = lambda *_: None

    def do_POST(self):
        said = self.rfile.read(min(int(self.headers["Content-Length"]), BYTES_MAX))
        if not is_signed(signature := self.headers["Signature"], said):
            return self.send_error(403)
        answer = json.dumps(next_part(**json.loads(said))).encode()
        self.send_response(200)
        self.send_header("Signature", sign(signature.encode(), answer))
        self.end_headers()
        self.wfile.write(answer)

losses = Losses()
status = json.loads(subprocess.check_output([os.environ["POSSE_EXE"], "status", "--json"]))
awaited = {one["id"] for one in status["executors"] if one["state"] in ("running", "draining")}
log("adopted", executors=sorted(awaited))
host, port = os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"])
HTTPServer.address_family = AF_INET6 if ":" in host else AF_INET
server = HTTPServer((host, port), Door)
server.timeout = 1  # seconds: how long to wait for an executor before looking for lost ones
while len(results) < len(PARTS):
    server.handle_request()
    for executor in losses.lost.copy():  # its part goes to another one
        holds.pop(executor, None)
        awaited.discard(executor)
    if not losses.is_alive():
        sys.exit("posse's events have ended, so nobody knows which executors are lost")
log("end", sum=sum(results.values()))
