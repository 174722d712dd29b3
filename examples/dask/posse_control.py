"""posse's control API for a driver in Python: one file to copy, standard library only."""

import http.client
import json
import os
import socket
import time
from urllib.parse import urlencode

SECONDS_PER_CALL = 10
SECONDS_OF_SILENCE = 60  # of events: posse sends an empty line every 15 s
SECONDS_AWAY = 60  # how long a posse that has answered once may be away, for a restart
PAUSE_SECONDS = 0.5


class ControlError(Exception):
    """A call that was not carried out. `status` is the answer's, None without one."""

    def __init__(self, message, status=None):
        super().__init__(message)
        self.status = status


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("posse", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Control:
    """The posse that started this process, or that POSSE_CONTROL names."""

    def __init__(self):
        self.address = os.environ.get("POSSE_CONTROL", "")
        self.token_file = os.environ.get("POSSE_CONTROL_TOKEN_FILE")
        self.has_answered = False

    def call(self, method, path, body=None):
        """Makes one call, again where posse is busy or, after the first answer, away: a call that
        is repeated changes nothing."""
        until = time.monotonic() + SECONDS_AWAY
        while True:
            try:
                answer = self._answer(method, path, body)
                self.has_answered = True
                return answer
            except ControlError as error:
                may_pass = error.status == 429 or (error.status is None and self.has_answered)
                if not may_pass or time.monotonic() > until:
                    raise
            time.sleep(PAUSE_SECONDS)

    def events(self):
        """Follows the events for good, over cut connections and restarts of posse. `missed` says
        that some are gone: what became of whom is in the status."""
        query = {"follow": "true"}
        while True:
            path = "/v1/events?" + urlencode(query)
            try:
                with self._send("GET", path, None, SECONDS_OF_SILENCE) as lines:
                    for line in filter(bytes.strip, lines):
                        event = json.loads(line)
                        query.update(run=event["run"], after=event["seq"])
                        yield event
            except ControlError as error:
                if error.status == 409:  # another run, which counts from 1
                    query = {"follow": "true"}
                    yield {"event": "missed"}
            except (OSError, http.client.HTTPException, ValueError):
                pass  # cut in the middle of a line: asked for again
            time.sleep(PAUSE_SECONDS)

    def _answer(self, method, path, body):
        try:
            with self._send(method, path, body, SECONDS_PER_CALL) as response:
                return json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = f"{method} {path}: what {self.address} answers is not posse's, or cut off ({error})"
            raise ControlError(f"{text}: does POSSE_CONTROL name a `posse run`?") from error

    def _send(self, method, path, body, timeout):
        if not self.address:
            raise ControlError(
                "POSSE_CONTROL is not set: start this with `posse run -- COMMAND`, or let the"
                " variable name the control API of a `posse run`, unix:PATH or HOST:PORT"
            )
        headers = {"Content-Type": "application/json"}
        is_unix = self.address.startswith("unix:")
        kind = UnixConnection if is_unix else http.client.HTTPConnection
        if self.token_file:
            try:
                with open(self.token_file) as file:
                    headers["Authorization"] = "Bearer " + file.read().strip()
            except (OSError, ValueError) as error:
                raise ControlError(f"POSSE_CONTROL_TOKEN_FILE cannot be read: {error}") from error
        try:
            connection = kind(self.address.removeprefix("unix:"), timeout=timeout)
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            text = f"no posse at {self.address} ({error}): is `posse run` there?"
            raise ControlError(text) from error
        if response.status == 200:
            return response
        text = response.read().decode(errors="replace")
        if response.status == 401:
            text += ": POSSE_CONTROL_TOKEN_FILE has to name the file of --control-token-file"
        elif response.status in (404, 405) and '"field"' not in text:  # not of a group, or an executor
            text += ": where this is a posse, it is too old for this client: use a newer one"
        raise ControlError(f"{method} {path}: {response.status} {text}", response.status)
