"""Asks the driver for a task, does it, sends the result, and asks again: worker.py HOST:PORT"""

import http.client
import json
import os
import secrets
import signal
import sys
import time

from signed import is_signed, sign

# The first process of a container ends at a TERM only if it handles the signal.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def work(task):
    """Put your own work here."""
    time.sleep(0.1)
    return task * task


def ask(**said):
    """Sends the result of the last task, if there is one, and returns the next one. Waits a minute for the driver."""
    for _ in range(60):
        # The random number makes each message another one, so that an answer fits only this one.
        said.update(executor=int(os.environ["POSSE_EXECUTOR_ID"]), once=secrets.token_hex())
        text = json.dumps(said).encode()
        signature = sign(text)
        try:
            driver = http.client.HTTPConnection(sys.argv[1], timeout=10)
            driver.request("POST", "/", text, {"Signature": signature})
            answer = driver.getresponse()
            text = answer.read()
            if is_signed(answer.headers["Signature"], signature.encode(), text):
                return json.loads(text)
            # posse was restarted, and has made another token, or somebody else listens there.
            sys.exit(f"what listens at {sys.argv[1]} has another token")
        except (OSError, http.client.HTTPException):
            time.sleep(1)
    sys.exit(f"no driver at {sys.argv[1]}")


begun = ask(ended=None)
while True:
    if begun is None:
        time.sleep(1)
        begun = ask(ended=None)
    else:
        task, nth = begun
        begun = ask(ended=nth, result=work(task))
