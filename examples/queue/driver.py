"""Hands out work over HTTP, and has posse keep as many executors as the work needs.

    driver.py PORT      PORT: where executors (executor.py) get their work

The work: to count primes, a range at a time, and one item that kills whoever takes it. What
happens is written to $QUEUE_RECORD, where that is set, one JSON object a line.
"""

import collections
import contextlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from posse_control import Control, ControlError

RANGES = [(start, start + 12_500) for start in range(0, 600_000, 12_500)] + [(600_000, 680_000)]
ITEMS = [*RANGES[:20], "poison", *RANGES[20:]]
GROUP = "workers"
ITEMS_PER_EXECUTOR = 8
DEATHS_MAX = 2  # an item that cost so many executors is set aside
UNSEEN = "gone while nobody looked"
TICK_SECONDS = 0.25


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
        """An executor has done an item, and wants another one."""
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
            item = self.claims[executor]
            return {"item": item, "work": ITEMS[item]}

    def lost(self, executor, reason, caused_by_app=False):
        """Its item is another's from now on, whatever it may still send. An item that kills
        everybody is the application's fault, and is found by that."""
        with self.lock:
            if executor in self.gone:
                return
            self.gone.add(executor)
            self.known.discard(executor)
            item = self.claims.pop(executor, None)
            self.write("lost", executor=executor, item=item, reason=reason)
            if item is not None:
                self.deaths[item] += caused_by_app
                if self.deaths[item] < DEATHS_MAX:
                    self.todo.appendleft(item)
                else:
                    self.set_aside[item] = reason

    def n_open(self):
        return len(ITEMS) - len(self.results) - len(self.set_aside)

    def idle(self):
        return sorted(self.known - self.leaving - set(self.claims))


def follow_events(control, queue):
    for event in control.events():
        if event["event"] == "executor_lost":
            reason = f"{event['reason']}, exit code {event['exit_code']}"
            queue.lost(event["executor"], reason, event["caused_by_app"])
        elif event["event"] == "executor_deleted":
            queue.lost(event["executor"], event["cause"])
        elif event["event"] == "missed":  # perhaps another posse, which has to be told anew
            control.call("POST", "/v1/driver/ready")
            executors = control.call("GET", "/v1/status")["executors"]
            there = {e["id"] for e in executors if e["state"] in ("pending", "running")}
            for executor in queue.known - there:
                queue.lost(executor, UNSEEN)


def tell(control, queue):
    """Whom the driver heard from, and who has nothing to do."""
    with queue.lock:
        heard, queue.heard = sorted(queue.heard), set()
        idle = queue.idle()
    control.call("POST", "/v1/executors/heartbeat", {"executors": heard})
    control.call("POST", "/v1/executors/idle", {"executors": idle})


def scale(control, queue, group):
    """As many executors as the work needs. Those who go are idle, and get no more work from the
    moment that they are chosen, so no item is lost with them. Said again and again: a repeat
    changes nothing, and a posse that was restarted does not know what was said before."""
    with queue.lock:
        target = max(group["min"], min(group["max"], -(-queue.n_open() // ITEMS_PER_EXECUTOR)))
        n_surplus = max(0, len(queue.known - queue.leaving) - target)
        victims = queue.idle()[::-1][:n_surplus]
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

    def log_message(self, *_):
        pass


def main(port):
    queue = Queue()
    try:
        control = Control()
        groups = control.call("GET", "/v1/status")["groups"]
        group = next(group for group in groups if group["group"] == GROUP)
        server = ThreadingHTTPServer(("", port), Handler)
        server.queue = queue
        for target, arguments in [(server.serve_forever, ()), (follow_events, (control, queue))]:
            threading.Thread(target=target, args=arguments, daemon=True).start()
        control.call("POST", "/v1/driver/ready")
        while queue.n_open():
            tell(control, queue)
            scale(control, queue, group)
            time.sleep(TICK_SECONDS)
    except (ControlError, OSError) as error:
        sys.exit(f"queue: {error}")
    print(f"{len(queue.results)} items done, {sum(queue.results.values())} primes")
    for item, reason in queue.set_aside.items():
        print(f"item {item} set aside: {reason}")


main(int(sys.argv[1]))
