"""Runs one command of the driver after another: worker.py HOST:PORT"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time

# The first process of a container ends at a TERM only if it handles the signal.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def ask(code, output):
    """Sends how the last command ended and returns the next one. Waits a minute for the driver."""
    for _ in range(60):
        try:
            driver = http.client.HTTPConnection(sys.argv[1], timeout=10)
            said = json.dumps({"code": code, "output": output})
            driver.request("POST", "/" + os.environ["POSSE_EXECUTOR_ID"], said)
            return json.load(driver.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(1)
    sys.exit(f"no driver at {sys.argv[1]}")


code = output = None
while True:
    command = ask(code, output)
    if command is None:
        code = None
        time.sleep(1)
        continue
    ended = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    code, output = ended.returncode, ended.stdout.decode(errors="replace")
