"""A Dask scheduler whose workers posse starts, and a client with your work: driver.py HOST PORT"""

import asyncio
import sys

try:
    from distributed import Client, Scheduler
except ImportError as missing:
    sys.exit(f"driver.py: {missing}; install it: pip install dask distributed")


def square(n):
    return n * n


async def main():
    # Dask takes brackets around any address, and wants them for IPv6.
    host, port = f"[{sys.argv[1]}]", int(sys.argv[2])
    # The environment names the keys for TLS: see posse.yaml. Dask's web server has none, so it stays on this machine.
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(protocol="tls://", host=host, port=port, **web) as scheduler:
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(1)
            # Put your own work here.
            squares = client.map(square, range(1, 101))
            print("sum of squares:", await client.submit(sum, squares), flush=True)


asyncio.run(main())
