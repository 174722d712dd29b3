"""Runs one command of the driver after another: worker.py HOST:PORT"""

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time

from signed import is_signed, sign

OUTPUT_BYTES_MAX = 1 << 20  # the driver prints the end of a longer one
# The first process of a container ends at a TERM only if it handles the signal.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def ask(**said):
    """Sends how the last command ended and returns the next one. Waits a minute for the driver."""
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


work = ask(ended=None)
while True:
    if work is None:
        time.sleep(1)
        work = ask(ended=None)
        continue
    ended = subprocess.run(["sh", "-c", work["command"]], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = ended.stdout[-OUTPUT_BYTES_MAX:].decode(errors="replace")
    work = ask(ended=work["try"], code=ended.returncode, output=output)
