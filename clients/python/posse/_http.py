"""One call of the control API over a unix socket or a loopback port."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
from typing import Any, Dict, Optional, Tuple

# A call is answered at once; posse checks a template with the API server before it answers.
CALL_SECONDS = 30.0
# posse sends an empty line every 15 s while there are no events.
QUIET_SECONDS = 45.0
# posse's errors are a few lines; another server's page may be longer.
REFUSAL_BYTES_MAX = 16 << 10

# What posse says of a call that it does not have.
UNKNOWN_CALL = "there is no such call"


class Error(Exception):
    """posse did not do what was asked; the text says why and what to do."""


class Unreachable(Error):
    """posse does not answer at its address, or what answers is not posse."""


class Refused(Error):
    """posse refused the call. `status` is the HTTP status, `field` the wrong part of the call, if there is one."""

    def __init__(self, text: str, status: int, field: Optional[str] = None, retry_after: Optional[float] = None) -> None:
        super().__init__(text)
        self.status = status
        self.field = field
        self.retry_after = retry_after


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("posse", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _loopback(address: str) -> Tuple[str, int]:
    """The host and the port of a loopback address. The calls are plain HTTP, so the token goes nowhere else."""
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        # The resolver is not asked: it could lead `localhost` elsewhere.
        ip = ipaddress.ip_address("127.0.0.1" if host == "localhost" else bare)
        if (ip.version == 6) != (bare != host) or not 0 <= int(port) <= 65535:
            raise ValueError("no IP address and port")
    except ValueError:
        raise Unreachable(f"{address} is not an address: give unix:PATH or a loopback HOST:PORT") from None
    if not ip.is_loopback:
        raise Unreachable(
            f"{address} is not a loopback address, and the token must not cross a network: give 127.0.0.1:PORT,"
            " through a tunnel to posse's machine (kubectl port-forward, ssh -L), or unix:PATH"
        )
    return str(ip), int(port)


class Door:
    """The address of a control API and the token for it."""

    def __init__(self, address: Optional[str], token_file: Optional[str]) -> None:
        self.address = address or os.environ.get("POSSE_CONTROL", "")
        self._token_file = token_file or os.environ.get("POSSE_CONTROL_TOKEN_FILE")
        if not self.address:
            raise Unreachable(
                "POSSE_CONTROL is not set: start this program with `posse run -- COMMAND`, or give Client the"
                " address of a `posse run`, unix:PATH or HOST:PORT"
            )

    def _headers(self) -> Dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token_file:
            # Read for each call: the file may have been replaced.
            try:
                with open(self._token_file, encoding="ascii") as file:
                    headers["Authorization"] = "Bearer " + file.read().strip()
            except (OSError, ValueError) as error:
                raise Error(f"the token file (POSSE_CONTROL_TOKEN_FILE) cannot be read: {error}") from error
        return headers

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return _UnixConnection(self.address[len("unix:") :], timeout)
        host, port = _loopback(self.address)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def open(self, method: str, path: str, body: Optional[object], timeout: float) -> http.client.HTTPResponse:
        """Makes a call, and returns its answer if that is 200. The answer's `close` closes the connection."""
        connection = self._connection(timeout)
        headers = {**self._headers(), "Connection": "close"}
        text = None if body is None else json.dumps(body)
        is_open = False
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            if answer.status == 200:
                is_open = True
                return answer
            refusal = answer.read(REFUSAL_BYTES_MAX).decode("utf-8", "replace")
        except OSError as error:
            raise Unreachable(f"no posse at {self.address} ({error}): is `posse run` there?") from error
        except (http.client.HTTPException, ValueError) as error:
            raise self.not_posse(method, path, error) from error
        finally:
            if not is_open:
                connection.close()
        raise _refused(f"{method} {path}", answer, refusal)

    def call(self, method: str, path: str, body: Optional[object] = None) -> Any:
        """Makes a call, and returns the JSON value of its answer."""
        answer = self.open(method, path, body, CALL_SECONDS)
        try:
            return json.loads(answer.read())
        except OSError as error:
            raise Unreachable(f"{method} {path}: the answer was cut off ({error})") from error
        except (http.client.HTTPException, ValueError) as error:
            raise self.not_posse(method, path, error) from error
        finally:
            answer.close()

    def not_posse(self, method: str, path: str, error: Exception) -> Unreachable:
        return Unreachable(
            f"{method} {path}: the answer of {self.address} is not posse's, or is cut off ({error}):"
            " is POSSE_CONTROL the address of a `posse run`?"
        )


def _refused(call: str, answer: http.client.HTTPResponse, text: str) -> Refused:
    field = None
    try:
        said = json.loads(text)
        text, field = str(said["error"]), said.get("field")
    except (ValueError, KeyError, TypeError, AttributeError):
        text = text.strip() or answer.reason
    if answer.status == 401:
        text += ": set POSSE_CONTROL_TOKEN_FILE to the file of --control-token-file"
    elif answer.status == 405 or text == UNKNOWN_CALL:
        text += ": if this is posse, it is too old for this client: use a newer one"
    elif field is not None:
        text = f"{field}: {text}"
    try:
        retry_after: Optional[float] = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    return Refused(f"{call}: {answer.status} {text}", answer.status, field, retry_after)
