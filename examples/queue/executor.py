"""Does one item of work after another.

    executor.py HOST:PORT      where the driver (driver.py) hands them out
"""

import http.client
import json
import os
import sys
import threading
import time

EXECUTOR = int(os.environ["POSSE_EXECUTOR_ID"])
SECONDS_PER_CALL = 10
TRIES = 60


def call(path, **body):
    """Asks the driver, again and again: it may be away for a moment, or gone for good."""
    for _ in range(TRIES):
        connection = http.client.HTTPConnection(sys.argv[1], timeout=SECONDS_PER_CALL)
        try:
            connection.request("POST", path, json.dumps({"executor": EXECUTOR, **body}))
            return json.load(connection.getresponse())
        except (OSError, http.client.HTTPException):
            time.sleep(1)
        finally:
            connection.close()
    sys.exit(f"no driver at {sys.argv[1]}")


def beat():
    while True:
        call("/alive")
        time.sleep(1)


def primes(start, end):
    return sum(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(start, end))


threading.Thread(target=beat, daemon=True).start()
pid, done = os.getpid(), {}
while True:
    answer = call("/next", pid=pid, **done)
    done = {}
    if not answer:
        time.sleep(0.1)
    elif answer["work"] == "poison":
        os._exit(13)
    else:
        done = {"done": answer["item"], "result": primes(*answer["work"])}
