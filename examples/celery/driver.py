"""Starts Redis, sends sixty tasks, and prints the sum of their results."""
import os
import subprocess
import sys
import time

port = sys.argv[1]
os.environ["BROKER"] = f"redis://127.0.0.1:{port}"
from tasks import app, square  # noqa: E402

redis = subprocess.Popen(["redis-server", "--port", port, "--save", "", "--bind", "0.0.0.0", "--protected-mode", "no"],
                         stdout=subprocess.DEVNULL)
while subprocess.run(["redis-cli", "-p", port, "ping"], capture_output=True).returncode:
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
