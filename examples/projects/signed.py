"""Signs what the driver and the workers say to each other. Only they know the run's token: see posse.yaml."""

import hmac
import os


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
