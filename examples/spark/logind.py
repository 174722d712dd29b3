"""The part of systemd-logind that a kubelet uses: it asks to hold up a shutdown, is told of one, and lets it go on.

It needs Debian's packages dbus-daemon and python3-jeepney. A kubelet finds the bus by $DBUS_SYSTEM_BUS_ADDRESS.
"""

import os
import select
import subprocess
import threading
import time

from jeepney import DBusAddress, HeaderFields, MessageType, new_error, new_method_return, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

MANAGER = DBusAddress("/org/freedesktop/login1", "org.freedesktop.login1", "org.freedesktop.login1.Manager")
# The longest delay that this service allows: kubelets then leave logind's configuration alone.
DELAY_SECONDS_MAX = 3600
START_SECONDS_MAX = 10


class Logind:
    def __init__(self, folder):
        socket = folder / "bus"
        self.address = f"unix:path={socket}"
        # It complains that it cannot have more files.
        self.bus = subprocess.Popen(["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={self.address}"],
                                    stderr=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS_MAX
        while not socket.exists() and time.monotonic() < until:
            time.sleep(0.05)
        self.connection = open_dbus_connection(self.address, enable_fds=True)
        self.connection.send_and_get_reply(message_bus.RequestName(MANAGER.bus_name))
        self.sending = threading.Lock()
        # The read ends of the pipes whose write ends clients hold.
        self.locks = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                call = self.connection.receive()
            except (ConnectionError, OSError):
                return
            if call.header.message_type == MessageType.method_call:
                self.send(self.answer(call))

    def answer(self, call):
        member = call.header.fields.get(HeaderFields.member)
        if member == "Inhibit":
            held, given = os.pipe()
            self.locks.append(held)
            return new_method_return(call, "h", (os.fdopen(given, "wb"),))
        if member == "Get" and call.body[1] == "InhibitDelayMaxUSec":
            return new_method_return(call, "v", (("t", DELAY_SECONDS_MAX * 1_000_000),))
        return new_error(call, "org.freedesktop.DBus.Error.UnknownMethod")

    def send(self, message):
        with self.sending:
            self.connection.send(message)
        for given in message.body:
            if hasattr(given, "close"):
                given.close()

    def prepare(self, begins):
        """Tells all clients that the machine will be shut down, or that it will not be."""
        self.send(new_signal(MANAGER, "PrepareForShutdown", "b", (begins,)))

    def is_held(self):
        """Whether a client still holds up the shutdown. Its end of the pipe is closed when it does not."""
        return any(not select.select([held], [], [], 0)[0] for held in self.locks)

    def end(self):
        self.bus.terminate()
        self.bus.wait()
