"""A Dask scheduler whose workers posse starts, and a client with your work: driver.py PORT"""

import asyncio
import sys

from distributed import Client, Scheduler


def square(n):
    return n * n


async def main():
    async with Scheduler(port=int(sys.argv[1]), dashboard=False) as scheduler:
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(1)
            # Put your own work here.
            squares = client.map(square, range(1, 101))
            print("sum of squares:", await client.submit(sum, squares), flush=True)


asyncio.run(main())
