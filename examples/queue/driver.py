"""Hands out work over HTTP and has posse keep as many executors as that needs: driver.py PORT

The work is to count primes, a range at a time, and one item that kills whoever takes it. What
happens goes to $QUEUE_RECORD, where that is set, one JSON object a line.
"""

import collections
import contextlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from posse_control import Control, ControlError

RANGES = [(start, start + 12_500) for start in range(0, 600_000, 12_500)] + [(600_000, 680_000)]
ITEMS = [*RANGES[:20], "poison", *RANGES[20:]]
GROUP, ITEMS_PER_EXECUTOR, TICK_SECONDS = "workers", 8, 0.25
DEATHS_MAX = 2  # an item that cost so many executors is set aside


class Queue:
    def __init__(self):
        self.lock = threading.RLock()
        self.todo = collections.deque(range(len(ITEMS)))
        self.claims = {}  # executor -> item
        self.results, self.deaths, self.set_aside = {}, collections.Counter(), {}
        self.known, self.heard, self.leaving, self.gone = set(), set(), set(), set()
        self.record = open(os.environ.get("QUEUE_RECORD", os.devnull), "a", buffering=1)

    def write(self, what, **facts):
        print(json.dumps({"time": time.time(), "what": what, **facts}), file=self.record)

    def alive(self, executor):
        with self.lock:
            if executor not in self.known | self.gone:
                self.write("registered", executor=executor)
                self.known.add(executor)
            self.heard.add(executor)
        return {}

    def next(self, executor, pid, done=None, result=None):
        with self.lock:
            self.alive(executor)
            if done is not None and self.claims.get(executor) == done:
                self.results[self.claims.pop(executor)] = result
                self.write("done", executor=executor, item=done)
            if executor not in self.claims:
                if executor in self.leaving | self.gone or not self.todo:
                    return {}
                item = self.claims[executor] = self.todo.popleft()
                self.write("begun", executor=executor, item=item, pid=pid)
            item = self.claims[executor]  # the same again, where the answer did not arrive
            return {"item": item, "work": ITEMS[item]}

    def lost(self, executor, reason, caused_by_app=False):
        """Its item is another's from now on, whatever it may still send."""
        with self.lock:
            if executor in self.gone:
                return
            self.gone.add(executor)
            self.known.discard(executor)
            item = self.claims.pop(executor, None)
            self.write("lost", executor=executor, item=item, reason=reason)
            self.deaths[item] += caused_by_app
            if item is not None and self.deaths[item] < DEATHS_MAX:
                self.todo.appendleft(item)
            elif item is not None:
                self.set_aside[item] = reason

    def n_open(self):
        return len(ITEMS) - len(self.results) - len(self.set_aside)

    def idle(self):
        return sorted(self.known - self.leaving - set(self.claims))


def follow_events(control, queue):
    for event in control.events():
        if event["event"] == "executor_lost":
            queue.lost(event["executor"], event["reason"], event["caused_by_app"])
        elif event["event"] == "executor_deleted":
            queue.lost(event["executor"], event["cause"])
        elif event["event"] == "missed":
            executors = control.call("GET", "/v1/status")["executors"]
            there = {e["id"] for e in executors if e["state"] in ("pending", "running")}
            for executor in queue.known - there:
                queue.lost(executor, "gone unseen")


def tell(control, queue):
    with queue.lock:
        heard, queue.heard, idle = sorted(queue.heard), set(), queue.idle()
    control.call("POST", "/v1/executors/heartbeat", {"executors": heard})
    control.call("POST", "/v1/executors/idle", {"executors": idle})


def scale(control, queue, group):
    """As many executors as the work needs. Those who go are idle, and get no more work from the
    moment that they are chosen, so no item is lost with them."""
    with queue.lock:
        target = max(group["min"], min(group["max"], -(-queue.n_open() // ITEMS_PER_EXECUTOR)))
        victims = queue.idle()[::-1][: max(0, len(queue.known - queue.leaving) - target)]
        queue.leaving.update(victims)
    if victims:
        queue.write("kill", executors=victims, target=target)
        body = {"executors": victims, "target": target, "force": True, "reason": "no work left"}
        control.call("POST", "/v1/executors/kill", body)
    else:
        control.call("PUT", f"/v1/groups/{GROUP}", {"target": target})


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"/next": self.server.queue.next, "/alive": self.server.queue.alive}[self.path]
        body = json.dumps(answer(**call)).encode()
        with contextlib.suppress(ConnectionError):  # it was killed while it waited
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    log_message = lambda *_: None


def main(port):
    queue, control = Queue(), Control()
    try:
        groups = {group["group"]: group for group in control.call("GET", "/v1/status")["groups"]}
        group = groups.get(GROUP) or sys.exit(f"queue: posse.yaml has no group {GROUP}")
        server = ThreadingHTTPServer(("", port), Handler)
        server.queue = queue
        for target, arguments in [(server.serve_forever, ()), (follow_events, (control, queue))]:
            threading.Thread(target=target, args=arguments, daemon=True).start()
        while queue.n_open():
            control.call("POST", "/v1/driver/ready")
            tell(control, queue)
            scale(control, queue, group)
            time.sleep(TICK_SECONDS)
    except (ControlError, OSError) as error:
        sys.exit(f"queue: {error}")
    n_done, n_primes = len(queue.results), sum(queue.results.values())
    print(f"{n_done} items done, {n_primes} primes, set aside: {queue.set_aside}")


main(int(sys.argv[1]))
