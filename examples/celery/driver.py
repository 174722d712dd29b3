"""Starts Redis, sends sixty tasks, and prints the sum of their results: driver.py HOST PORT"""
import os
import subprocess
import sys
import time
from pathlib import Path

host, port = sys.argv[1:]
password = Path(os.environ["PASSWORD_FILE"]).read_text()
os.environ["BROKER"] = f"redis://:{password}@{f'[{host}]' if ':' in host else host}:{port}"
import posse  # noqa: E402
from tasks import app, held_by, square  # noqa: E402

# Redis reads its settings from stdin: other users see the words of a command.
redis = subprocess.Popen(["redis-server", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
# The command of `scale` dials loopback.
redis.stdin.write(f'bind {" ".join({host, "127.0.0.1"})}\nport {port}\nrequirepass {password}\nsave ""\n'.encode())
redis.stdin.close()
ping = ["redis-cli", "-e", "-p", port, "ping"]
while subprocess.run(ping, capture_output=True, env={**os.environ, "REDISCLI_AUTH": password}).returncode:
    time.sleep(0.1)


def give_back(executor):
    """What this worker held goes to the others."""
    with app.connection_for_read(transport_options=held_by(executor)) as connection:
        channel = connection.default_channel
        for tag in channel.client.hkeys(channel.unacked_key):
            channel.qos.restore_by_tag(tag)


client = posse.Client()
losses, lost, given_back = client.losses(), set(), set()
results = [square.delay(n) for n in range(60)]
while not all(result.ready() for result in results):
    time.sleep(1)
    there = client.status().executors
    lost.update(loss.executor for loss in losses.take(set(there)))
    # One that is evicted still finishes its task.
    for executor in lost - given_back:
        if executor not in there or there[executor].state == "failed":
            give_back(executor)
            given_back.add(executor)
done = [result.get() for result in results]
print("sum", sum(n for n, _ in done), "executors", len({executor for _, executor in done}), flush=True)
while os.environ.get("STAY") and not os.path.exists(os.environ["STAY"]):
    time.sleep(0.1)
redis.terminate()
