"""What a driver and its workers say to each other: frames that only who knows the run's key can write.

Each side sends a nonce first. The session's key comes from both, and each frame has a HMAC-SHA256 over its direction,
its number and its contents, so a frame cannot be forged, repeated or left out. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading

NONCE_BYTES = 32
MAC_BYTES = 32
# The largest frame once both sides have proved that they know the key. Pickles of larger results belong on a volume.
FRAME_BYTES_MAX = 1 << 30
# Until then.
HELLO_BYTES_MAX = 4 << 10
# How long the first frame may take.
HELLO_SECONDS = 10
# A connection whose other machine is gone without a word ends after about half a minute.
KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))


class ChannelError(OSError):
    """The other side does not know the key, or says something that nobody of this run would say."""


class Channel:
    """One connection. One thread may receive while others send."""

    def __init__(self, stream: socket.socket, key: bytes, *, is_driver: bool) -> None:
        self._stream, self._is_driver = stream, is_driver
        self._n_sent = self._n_received = 0
        self._sending = threading.Lock()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            if hasattr(socket, name):
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        stream.settimeout(HELLO_SECONDS)
        ours = secrets.token_bytes(NONCE_BYTES)
        stream.sendall(ours)
        theirs = self._read(NONCE_BYTES)
        self._key = hmac.digest(key, ours + theirs if is_driver else theirs + ours, "sha256")

    def _mac(self, is_from_driver: bool, number: int, payload: bytes) -> bytes:
        mac = hmac.new(self._key, struct.pack(">?QQ", is_from_driver, number, len(payload)), "sha256")
        mac.update(payload)
        return mac.digest()

    def send(self, payload: bytes) -> None:
        """Sends a frame of at most `FRAME_BYTES_MAX`. Raises `OSError` if the connection is broken."""
        with self._sending:
            mac = self._mac(self._is_driver, self._n_sent, payload)
            self._n_sent += 1
            self._stream.sendall(struct.pack(">Q", len(payload)) + mac)
            self._stream.sendall(payload)

    def receive(self, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        """Waits for a frame. Raises `OSError` if the connection ends, or if the frame is not of this run."""
        header = self._read(8 + MAC_BYTES)
        (n_bytes,) = struct.unpack_from(">Q", header)
        if n_bytes > bytes_max:
            raise ChannelError("the frame is too large, or not of this run")
        payload = self._read(n_bytes)
        if not hmac.compare_digest(header[8:], self._mac(not self._is_driver, self._n_received, payload)):
            raise ChannelError("the other side does not know the key of this run")
        self._n_received += 1
        return payload

    def trust(self) -> None:
        """From now on the other side may take its time: it knows the key."""
        self._stream.settimeout(None)

    def close(self) -> None:
        """Ends the connection, also for a thread that receives."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended already.
        self._stream.close()

    def _read(self, n_bytes: int) -> bytes:
        # It grows with what has come, not with what was announced.
        read = bytearray()
        while len(read) < n_bytes:
            some = self._stream.recv(min(n_bytes - len(read), 1 << 20))
            if not some:
                raise ConnectionResetError("the connection has ended")
            read += some
        return bytes(read)
