"""A client of posse's control API. Copy this file; it uses only the standard library."""

import contextlib
import http.client
import json
import os
import socket
import time

SECONDS_PER_CALL = 10
SECONDS_AWAY = 60  # how long to retry after the first answer: posse may be restarted
PAUSE_SECONDS = 0.5


class ControlError(Exception):
    """A call failed. `status` is the HTTP status, or None if there was no answer."""

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
    """The control API at $POSSE_CONTROL."""

    def __init__(self):
        self.address = os.environ.get("POSSE_CONTROL", "")
        self.token_file = os.environ.get("POSSE_CONTROL_TOKEN_FILE")
        self.has_answered = False

    def call(self, method, path, body=None):
        """Makes one call. Retries if posse is busy, or if it was reachable before and is not now.
        Repeating a call changes nothing."""
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

    def _answer(self, method, path, body):
        if not self.address:
            raise ControlError(
                "POSSE_CONTROL is not set: start this program with `posse run -- COMMAND`, or set"
                " the variable to the control API of a `posse run`, unix:PATH or HOST:PORT"
            )
        headers = {"Content-Type": "application/json"}
        if self.token_file:
            try:
                with open(self.token_file) as file:
                    headers["Authorization"] = "Bearer " + file.read().strip()
            except (OSError, ValueError) as error:
                raise ControlError(f"POSSE_CONTROL_TOKEN_FILE cannot be read: {error}") from error
        kind = UnixConnection if self.address.startswith("unix:") else http.client.HTTPConnection
        where = self.address.removeprefix("unix:")
        try:
            with contextlib.closing(kind(where, timeout=SECONDS_PER_CALL)) as connection:
                connection.request(method, path, body and json.dumps(body), headers)
                response = connection.getresponse()
                text = response.read().decode()
            if response.status == 200:
                return json.loads(text)
        except OSError as error:
            raise ControlError(f"no posse at {self.address} ({error}): is `posse run` there?") from error
        except (http.client.HTTPException, ValueError) as error:
            text = f"{method} {path}: the answer of {self.address} is not posse's, or is cut off ({error})"
            raise ControlError(f"{text}: is POSSE_CONTROL the address of a `posse run`?") from error
        if response.status == 401:
            text += ": set POSSE_CONTROL_TOKEN_FILE to the file of --control-token-file"
        elif response.status in (404, 405) and '"field"' not in text:  # the call itself is unknown
            text += ": if this is posse, it is too old for this client: use a newer one"
        raise ControlError(f"{method} {path}: {response.status} {text}", response.status)
