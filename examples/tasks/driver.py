"""Counts the words of each text by a task of its own, and prints the sum. $OUT: the folder of the results."""

import os
import sys
import tempfile
from pathlib import Path

import posse

out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
texts = sorted(Path("fixtures/text").glob("*.txt"))
client = posse.Client()
client.executors.submit_all({"key": text.stem, "args": [str(text), str(out / text.stem)], "retries": 2} for text in texts)
ended = {}
for event in client.events():
    if event.name == "task_ended":
        ended[event.fields["key"]] = event.fields["outcome"]
    if len(ended) == len(texts):
        break
print("words", sum(int((out / text.stem).read_text()) for text in texts if ended[text.stem] == "succeeded"))
sys.exit(any(outcome != "succeeded" for outcome in ended.values()))
