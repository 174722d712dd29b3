"""Which workers are lost, as posse says: only what a lost worker had may begin again."""

import json
import os
import subprocess
import threading


class Losses(threading.Thread):
    """Follows posse's events. When it ends, losses are no longer known."""

    def __init__(self):
        super().__init__(daemon=True)
        self.lost = {}  # executor -> whether it is the application's fault; posse gives a number once
        self.start()

    def run(self):
        words = [os.environ["POSSE_EXE"], "events", "--follow", "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as events:
            for line in events.stdout:
                event = json.loads(line)
                if event["event"] in ("executor_lost", "executor_deleted"):
                    self.lost[event["executor"]] = event.get("caused_by_app", False)
                elif event["event"] == "missed":
                    events.terminate()  # a loss may be among those that posse has dropped
                    return
