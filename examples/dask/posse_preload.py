"""Lets posse run as many workers as the scheduler wants: `dask scheduler --preload THIS_FILE`."""

import asyncio
import sys

from distributed import SchedulerPlugin, Status
from posse_control import Control, ControlError
from tornado.ioloop import PeriodicCallback

GROUP, TICK_MS, TICKS_BEFORE_LOWER = "workers", 1_000, 3


class Posse(SchedulerPlugin):
    def __init__(self, scheduler):
        self.scheduler, self.control = scheduler, Control()
        self.ids, self.heard_at, self.n_lower = {}, 0, 0

    async def call(self, method, path, body=None):
        try:
            return await asyncio.to_thread(self.control.call, method, "/v1/" + path, body)
        except ControlError as error:
            sys.exit(f"dask: {error}")

    def add_worker(self, scheduler, worker):
        self.ids[worker] = int(scheduler.workers[worker].name)

    async def remove_worker(self, scheduler, worker, **_):
        await self.call("POST", f"executors/{self.ids.pop(worker)}/disconnected")

    async def tell(self):
        workers = self.scheduler.workers.values()
        heard = [int(ws.name) for ws in workers if ws.last_seen > self.heard_at]
        self.heard_at = max((ws.last_seen for ws in workers), default=0)
        await self.call("POST", "driver/ready")  # repeated, because posse may have been restarted
        await self.call("POST", "executors/heartbeat", {"executors": heard})

    async def scale(self):
        workers, group = self.scheduler.workers, self.group
        if any(ws.status is Status.closing_gracefully for ws in workers.values()):
            return  # the scheduler still counts workers that are retiring
        wanted = max(group["min"], min(group["max"], self.scheduler.adaptive_target()))
        self.n_lower = self.n_lower + 1 if wanted < group["target"] else 0
        target = wanted if self.n_lower >= TICKS_BEFORE_LOWER else max(wanted, group["target"])
        victims = self.scheduler.workers_to_close()[: max(0, len(workers) - target)]
        # Copies results that only these workers hold; returns the workers for which this succeeded.
        retired = await self.scheduler.retire_workers(victims, remove=False)
        body = {"executors": [self.ids[address] for address in retired], "target": target}
        if retired:
            group |= await self.call("POST", "executors/kill", {**body, "reason": "retired"})
        else:
            group |= await self.call("PUT", f"groups/{GROUP}", {"target": target})


async def dask_setup(scheduler):
    posse = Posse(scheduler)
    groups = {group["group"]: group for group in (await posse.call("GET", "status"))["groups"]}
    posse.group = groups.get(GROUP) or sys.exit(f"dask: posse.yaml has no group {GROUP}")
    scheduler.add_plugin(posse)
    for name, tick in [("posse-tell", posse.tell), ("posse-scale", posse.scale)]:
        scheduler.periodic_callbacks[name] = PeriodicCallback(tick, TICK_MS)
