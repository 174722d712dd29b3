"""Counts primes with executors: hands out ranges of numbers, collects the counts. driver.py PORT"""

import http.client
import json
import os
import socket
import sys
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, HTTPServer

ITEMS = ["poison", *(f"{n}-{n + 12_500}" for n in range(0, 600_000, 12_500)), "600000-680000"]
ITEMS_PER_EXECUTOR, DEATHS_MAX, TICK_SECONDS, SECONDS_AWAY = 8, 2, 0.25, 60
ADDRESS = os.environ.get("POSSE_CONTROL", "(POSSE_CONTROL is not set)")
todo, results, deaths, set_aside = deque(ITEMS), {}, Counter(), deque()
holds, heard, gone = {}, set(), set()  # holds: executor -> its item, or None
last = {"query": ""}  # asks for the events after the last one that was read


def log(what, **facts):
    print(json.dumps({"time": time.time(), "what": what, **facts}), flush=True)


def call(method, path, body=None):
    """Calls posse. Returns a list: one object for each line of the answer."""
    posse = http.client.HTTPConnection("posse")
    posse.sock = socket.socket(socket.AF_UNIX)
    posse.sock.settimeout(10)
    posse.sock.connect(ADDRESS.removeprefix("unix:"))
    posse.request(method, path, body and json.dumps(body))
    answer = posse.getresponse()
    lines = [json.loads(line) for line in answer]
    if answer.status not in (200, 409):
        raise OSError(f"{method} {path}: {answer.status} {lines}")
    return lines


def hear(executor, item=None, result=None, wants_work=False):
    """Handles a message of an executor: a heartbeat, and perhaps a result or a request for work."""
    heard.add(executor)
    if executor in gone:
        return None  # its item was already given to another executor
    if item and holds.get(executor) == item:
        results[item], holds[executor] = result, None
        log("done", executor=executor, item=item)
    if not holds.setdefault(executor) and wants_work and todo:
        holds[executor] = todo.popleft()
        log("begun", executor=executor, item=holds[executor])
    return holds[executor]


def lost(executor, reason, caused_by_app=False):
    if executor not in gone:
        gone.add(executor)
        item = holds.pop(executor, None)
        log("lost", executor=executor, item=item, reason=reason)
        if item:  # give it to another executor, or set it aside
            deaths[item] += caused_by_app
            (todo if deaths[item] < DEATHS_MAX else set_aside).appendleft(item)


def follow_events():
    for event in call("GET", "/v1/events?" + last["query"]):
        if event.get("event") in ("executor_lost", "executor_deleted"):
            lost(event["executor"], event.get("reason"), event.get("caused_by_app", False))
        elif "error" in event or event["event"] == "missed":  # posse was restarted, or events are gone
            [status] = call("GET", "/v1/status")
            there = {e["id"] for e in status["executors"] if e["state"] in ("pending", "running")}
            for executor in holds.keys() - there:
                lost(executor, "not listed")
        last["query"] = f"run={event['run']}&after={event['seq']}" if "run" in event else ""


def tick():
    call("GET", "/readyz")  # fails until posse has listed the executors
    call("POST", "/v1/driver/ready")
    follow_events()
    call("POST", "/v1/executors/heartbeat", {"executors": sorted(heard)})
    heard.clear()
    n_open = len(ITEMS) - len(results) - len(set_aside)
    [group] = call("PUT", "/v1/groups/workers", {"target": -(-n_open // ITEMS_PER_EXECUTOR)})
    idle = sorted(executor for executor, item in holds.items() if not item)
    if victims := idle[::-1][: max(0, len(holds) - group["target"])]:
        call("POST", "/v1/executors/kill", {"executors": victims, "force": True, **group})
        for executor in victims:
            lost(executor, "no work left")


class Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds: an executor that hangs in a call must not block the others
    log_message = lambda *_: None

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(hear(int(self.path[1:]), **said)).encode())


server, away_until = HTTPServer(("", int(sys.argv[1])), Handler), 0
server.timeout = TICK_SECONDS
while len(results) + len(set_aside) < len(ITEMS):
    next_tick = time.monotonic() + TICK_SECONDS
    while time.monotonic() < next_tick:
        server.handle_request()
    try:
        tick()
        away_until = time.monotonic() + SECONDS_AWAY
    except (OSError, ValueError, http.client.HTTPException) as error:
        if time.monotonic() > away_until:
            sys.exit(f"queue: posse at {ADDRESS}: {error}. Is this `posse run -- THIS`?")
log("end", primes=sum(results.values()), n_done=len(results), set_aside=list(set_aside))
