"""Starts Redis, sends sixty tasks, and prints the sum of their results: driver.py HOST PORT"""
import os
import subprocess
import sys
import time
from pathlib import Path

host, port = sys.argv[1:]
password = Path(os.environ["PASSWORD_FILE"]).read_text()
os.environ["BROKER"] = f"redis://:{password}@{host}:{port}"
from tasks import app, square  # noqa: E402

# Redis reads its settings from stdin: other users see the words of a command.
redis = subprocess.Popen(["redis-server", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
# The command of `scale` dials loopback.
redis.stdin.write(f'bind {" ".join({host, "127.0.0.1"})}\nport {port}\nrequirepass {password}\nsave ""\n'.encode())
redis.stdin.close()
ping = ["redis-cli", "-e", "-p", port, "ping"]
while subprocess.run(ping, capture_output=True, env={**os.environ, "REDISCLI_AUTH": password}).returncode:
    time.sleep(0.1)
results = [square.delay(n) for n in range(60)]
with app.connection_for_read() as connection:
    while not all(result.ready() for result in results):
        time.sleep(1)
        # Celery's workers look for the tasks of lost workers once in 100 s.
        connection.default_channel.qos.restore_visible(num=100, interval=1)
done = [result.get() for result in results]
print("sum", sum(n for n, _ in done), "executors", len({executor for _, executor in done}), flush=True)
while os.environ.get("STAY") and not os.path.exists(os.environ["STAY"]):
    time.sleep(0.1)
redis.terminate()
