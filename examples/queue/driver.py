"""Counts primes with executors: hands out ranges of numbers, collects the counts."""

import json
import os
import time
from collections import Counter
from socket import AF_INET, AF_INET6
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

import posse
from signed import Bounded, is_signed, sign

ITEMS = ["poison", *(f"{n}-{n + 12_500}" for n in range(0, 600_000, 12_500)), "600000-680000"]
ITEMS_PER_EXECUTOR, DEATHS_MAX, TICK_SECONDS = 8, 2, 0.25
UNKNOWN = "unknown"  # the item of an executor that outlives an earlier driver, until it calls
results, deaths, heard, gone = {}, Counter(), set(), set()


def log(what, **facts):
    print(json.dumps({"time": time.time(), "what": what, **facts}), flush=True)


def open_items():
    """Those that are neither done nor set aside."""
    return [item for item in ITEMS if item not in results and deaths[item] < DEATHS_MAX]


def tell(text, signature):
    """A call of an executor: a heartbeat, or a request for work. Returns its item."""
    if not is_signed(signature, text.encode()):
        raise PermissionError("no executor of this run")
    executor, wants_work, item, done, _ = json.loads(text)
    heard.add(executor)
    if executor not in gone:  # otherwise its item was already given to another executor
        for new in done.keys() - results.keys():
            results[new] = done[new]
            log("done", executor=executor, item=new)
        if holds.setdefault(executor, UNKNOWN) == UNKNOWN:
            holds[executor] = item
        if holds[executor] in results:
            holds[executor] = None
        todo = [item for item in open_items() if item not in holds.values()]
        if wants_work and not holds[executor] and todo and UNKNOWN not in holds.values():
            holds[executor] = todo[0]
            log("begun", executor=executor, item=todo[0])
    answer = json.dumps(holds.get(executor))
    return answer, sign(signature.encode(), answer.encode())


Door = type("Door", (Bounded, SimpleXMLRPCRequestHandler), {})
address = os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"])
SimpleXMLRPCServer.address_family = AF_INET6 if ":" in address[0] else AF_INET
server = SimpleXMLRPCServer(address, Door, logRequests=False, allow_none=True)
server.register_function(tell)
client, server.timeout = posse.Client(), TICK_SECONDS
losses = client.losses()
there = client.status().executors.items()
holds = {id: UNKNOWN for id, one in there if one.state in ("running", "draining")}  # executor -> its item, or None
while open_items():
    next_tick = time.monotonic() + TICK_SECONDS
    while time.monotonic() < next_tick:
        server.handle_request()
    for loss in losses.take(holds):
        gone.add(loss.executor)
        item = holds.pop(loss.executor, None)
        log("lost", executor=loss.executor, item=item, reason=loss.reason)
        deaths[item] += loss.caused_by_app  # another executor gets it, or it is set aside
    client.ready()  # repeated, because posse may have been restarted
    client.heartbeat(heard)
    heard.clear()
    target = client.scale(-(-len(open_items()) // ITEMS_PER_EXECUTOR), "workers")
    idle = (executor for executor, item in holds.items() if not item)
    if victims := sorted(idle, reverse=True)[: max(0, len(holds) - target)]:
        client.kill(victims, target=target, force=True)
        gone.update(victims)
        holds = {executor: item for executor, item in holds.items() if executor not in gone}
set_aside = [item for item in ITEMS if item not in results]
log("end", primes=sum(results.values()), n_done=len(results), set_aside=set_aside)
