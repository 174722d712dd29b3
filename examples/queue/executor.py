"""Fetches items of work from the driver, one after another: executor.py HOST:PORT"""

import http.client
import json
import os
import secrets
import socket
import sys
import threading
import time
from xmlrpc.client import Error, ServerProxy

from signed import is_signed, sign

socket.setdefaulttimeout(10)
item, done = None, {}
talking = threading.Lock()  # one message after another: a heartbeat never comes after what it does not know


def tell(wants_work=False):
    """Tells the driver what this is at and what it has done: a driver in another pod knows nothing else of it."""
    global item
    for _ in range(60):  # the driver may be unreachable for a moment
        try:
            with talking, ServerProxy(f"http://{sys.argv[1]}") as driver:
                # The random number makes each message another one, so that an answer fits only this one.
                said = [int(os.environ["POSSE_EXECUTOR_ID"]), wants_work, item, done, secrets.token_hex()]
                signature = sign((text := json.dumps(said)).encode())
                answer, signed = driver.tell(text, signature)
                if not is_signed(signed, signature.encode(), answer.encode()):
                    raise OSError("no driver of this run")
                if wants_work:
                    item = json.loads(answer)
                return
        except (OSError, http.client.HTTPException, Error):
            time.sleep(1)
    sys.exit(f"no driver at {sys.argv[1]}")


def beat():
    while True:
        tell()
        time.sleep(1)


def primes(start, end):
    return sum(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(start, end))


threading.Thread(target=beat, daemon=True).start()
while True:
    tell(wants_work=True)
    if item:
        result = primes(*map(int, item.split("-")))
        with talking:
            done[item] = result
    else:
        time.sleep(0.1)
