"""Signs what the driver and the workers say to each other. Only they know the run's token: see posse.yaml."""

import hmac
import io
import os
import time

SECONDS_MAX, BYTES_MAX = 5, 8 << 20  # of a message, with its head


def token():
    """The driver has the token in a file, a worker in its environment."""
    if "TOKEN_FILE" in os.environ:
        with open(os.environ["TOKEN_FILE"], "rb") as file:
            return file.read()
    return os.environb[b"TOKEN"]


def sign(*parts):
    return hmac.new(token(), b"".join(parts), "sha256").hexdigest()


def is_signed(signature, *parts):
    """A message without a signature, or with that of another token, is forged."""
    return hmac.compare_digest((signature or "").encode(), sign(*parts).encode())


class Message(io.RawIOBase):
    """What comes from a connection, to these limits. The time-out of a socket would begin anew with each byte."""

    def __init__(self, connection):
        self.connection, self.end, self.left = connection, time.monotonic() + SECONDS_MAX, BYTES_MAX

    def readable(self):
        return True

    def readinto(self, buffer):
        if (seconds := self.end - time.monotonic()) <= 0:
            raise TimeoutError
        self.connection.settimeout(seconds)
        n = self.connection.recv_into(memoryview(buffer)[: self.left]) if self.left else 0
        self.left -= n
        return n


class Bounded:
    """For a handler of requests: who sends slowly or without an end, signed or not, must not block the others."""

    def setup(self):
        super().setup()
        self.rfile = io.BufferedReader(Message(self.connection))
