"""Squares numbers for the driver, whichever pod that is at the moment: executor.py HOST:PORT"""

import json
import os
import secrets
import sys
import time
from http.client import HTTPConnection, HTTPException

from signed import is_signed, sign

done = {}


def ask():
    """Tells the driver what is done. Returns the next part, or None."""
    said = {"executor": int(os.environ["POSSE_EXECUTOR_ID"]), "done": done, "nonce": secrets.token_hex()}
    signature = sign(said := json.dumps(said).encode())
    driver = HTTPConnection(sys.argv[1], timeout=10)
    driver.request("POST", "/", said, {"Signature": signature})
    answer = driver.getresponse()
    if not is_signed(answer.headers["Signature"], signature.encode(), text := answer.read()):
        raise OSError("no driver of this run")
    return json.loads(text)


while True:
    part = None
    try:
        part = ask()
    except (OSError, HTTPException):
        pass  # The next driver comes, under the same name.
    time.sleep(0.5)
    if part is not None:
        done[part] = part * part
