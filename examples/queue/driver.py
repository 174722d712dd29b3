"""Counts primes with executors: hands out ranges of numbers, collects the counts."""

import json
import os
import time
from collections import Counter, deque
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

import posse
from signed import is_signed, sign

ITEMS = ["poison", *(f"{n}-{n + 12_500}" for n in range(0, 600_000, 12_500)), "600000-680000"]
ITEMS_PER_EXECUTOR, DEATHS_MAX, TICK_SECONDS = 8, 2, 0.25
todo, results, deaths, set_aside = deque(ITEMS), {}, Counter(), deque()
holds, heard, gone = {}, set(), set()  # holds: executor -> its item, or None


def log(what, **facts):
    print(json.dumps({"time": time.time(), "what": what, **facts}), flush=True)


def tell(text, signature):
    """A call of an executor: a heartbeat, and perhaps a result or a request for work. Returns its item."""
    if not is_signed(signature, text.encode()):
        raise PermissionError("no executor of this run")
    executor, wants_work, item, result, _ = json.loads(text)
    heard.add(executor)
    if executor not in gone:  # otherwise its item was already given to another executor
        if item and holds.get(executor) == item:
            results[item], holds[executor] = result, None
            log("done", executor=executor, item=item)
        if not holds.setdefault(executor) and wants_work and todo:
            holds[executor] = todo.popleft()
            log("begun", executor=executor, item=holds[executor])
    answer = json.dumps(holds.get(executor))
    return answer, sign(signature.encode(), answer.encode())


SimpleXMLRPCRequestHandler.timeout = 5  # seconds: an executor that hangs in a call must not block the others
address = os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"])
server = SimpleXMLRPCServer(address, logRequests=False, allow_none=True)
server.register_function(tell)
client, server.timeout = posse.Client(), TICK_SECONDS
losses = client.losses()
while len(results) + len(set_aside) < len(ITEMS):
    next_tick = time.monotonic() + TICK_SECONDS
    while time.monotonic() < next_tick:
        server.handle_request()
    for loss in losses.take(holds):
        gone.add(loss.executor)
        item = holds.pop(loss.executor, None)
        log("lost", executor=loss.executor, item=item, reason=loss.reason)
        if item:  # give it to another executor, or set it aside
            deaths[item] += loss.caused_by_app
            (todo if deaths[item] < DEATHS_MAX else set_aside).appendleft(item)
    client.ready()  # repeated, because posse may have been restarted
    client.heartbeat(heard)
    heard.clear()
    target = client.scale(-(-(len(ITEMS) - len(results) - len(set_aside)) // ITEMS_PER_EXECUTOR), "workers")
    idle = (executor for executor, item in holds.items() if not item)
    if victims := sorted(idle, reverse=True)[: max(0, len(holds) - target)]:
        client.kill(victims, target=target, force=True)
        gone.update(victims)
        holds = {executor: item for executor, item in holds.items() if executor not in gone}
log("end", primes=sum(results.values()), n_done=len(results), set_aside=list(set_aside))
