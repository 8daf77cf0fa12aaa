"""The plugin's v8 table through ctypes, just enough to connect, move bytes and die.

Used by faults.py, which starts this file as a process of its own for each end:
    net.py PLUGIN listen|connect     handle as hex on stdout or stdin, then commands on stdin
Replies are one line each: "ok ...", "error CODE ..." or "timeout".
"""
import ctypes
import os
import sys
import time

MEMBERS = ["name", "init", "devices", "getProperties", "listen", "connect", "accept", "regMr",
           "regMrDmaBuf", "deregMr", "isend", "irecv", "iflush", "test", "closeSend", "closeRecv",
           "closeListen", "getDeviceMr", "irecvConsumed"]
HANDLE_BYTES = 128
HOST = 1


# NCCL's logger is variadic; the plugin always calls it with the format "%s%s" and two texts, which
# arrive as two more arguments on the platforms served (x86-64 and arm64 Linux).
LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int,
                          ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
WARN, INFO = 2, 3


@LOGGER
def log_to_stderr(level, _flags, _where, _line, _format, prefix, text):
    if level <= INFO:
        name = "WARN" if level == WARN else "INFO"
        sys.stderr.write(f"{name} " + (prefix + text).decode(errors="replace") + "\n")
        sys.stderr.flush()


def running(seconds, step=0.05):
    """Gives `step`, to wait for, until this process has run for so many seconds.  A machine that stood
    still ends no wait: of what is longer than two steps the rest does not count."""
    while seconds > 0:
        begin = time.monotonic()
        yield step
        seconds -= min(time.monotonic() - begin, 2 * step)


class Refused(Exception):
    """A call returned something else than ncclSuccess."""


class Table(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in MEMBERS]


class Net:
    def __init__(self, plugin):
        self.table = Table.in_dll(ctypes.CDLL(plugin), "ncclNetPlugin_v8")

    def call(self, member, *args):
        function = ctypes.CFUNCTYPE(ctypes.c_int, *[type(a) if isinstance(a, ctypes._SimpleCData)
                                                    else ctypes.c_void_p for a in args])
        rc = function(getattr(self.table, member))(
            *[a if isinstance(a, ctypes._SimpleCData) else ctypes.cast(a, ctypes.c_void_p) for a in args])
        if rc != 0:
            raise Refused(f"{rc} {member}")

    def init(self):
        self.call("init", log_to_stderr)

    def devices(self):
        n = ctypes.c_int(-1)
        self.call("devices", ctypes.pointer(n))
        return n.value

    def until(self, member, seconds, out, *args):
        """Repeats a call that gives NULL while it would block."""
        for step in running(seconds, 0.001):
            self.call(member, *args)
            if out.value:
                return True
            time.sleep(step)
        return False


class End:
    """One end of one connection, driven by lines on stdin."""

    def __init__(self, plugin, role):
        self.net, self.role = Net(plugin), role
        self.comm, self.device_comm = ctypes.c_void_p(), ctypes.c_void_p()
        self.buffer = ctypes.create_string_buffer(1 << 20)
        self.request, self.memory = ctypes.c_void_p(), ctypes.c_void_p()

    def open(self, seconds):
        net = self.net
        net.init()
        if net.devices() < 1:
            raise Refused("0 devices")
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        if self.role == "listen":
            listener = ctypes.c_void_p()
            net.call("listen", ctypes.c_int(0), handle, ctypes.pointer(listener))
            print(handle.raw.hex(), flush=True)
            sys.stdin.readline()  # faults.py does its mischief now
            return net.until("accept", seconds, self.comm, listener, ctypes.pointer(self.comm),
                             ctypes.pointer(self.device_comm))
        handle.raw = bytes.fromhex(sys.stdin.readline())
        return net.until("connect", seconds, self.comm, ctypes.c_int(0), handle,
                         ctypes.pointer(self.comm), ctypes.pointer(self.device_comm))

    def register(self):
        if not self.memory:
            self.net.call("regMr", self.comm, self.buffer, ctypes.c_size_t(len(self.buffer)),
                          ctypes.c_int(HOST), ctypes.pointer(self.memory))

    def outside(self):
        """A send, or a receive, of one page more than was registered; registrations are whole pages."""
        net, size = self.net, len(self.buffer) + 8192
        self.register()
        if self.role == "connect":
            net.until("isend", 5, self.request, self.comm, self.buffer, ctypes.c_int(size), ctypes.c_int(7),
                      self.memory, ctypes.pointer(self.request))
        else:
            data, length = (ctypes.c_void_p * 1)(ctypes.addressof(self.buffer)), (ctypes.c_int * 1)(size)
            tags, memory = (ctypes.c_int * 1)(7), (ctypes.c_void_p * 1)(self.memory.value)
            net.call("irecv", self.comm, ctypes.c_int(1), data, length, tags, memory,
                     ctypes.pointer(self.request))

    def flood(self):
        """How many receives can be posted before the plugin asks to come again."""
        self.register()
        data, length = (ctypes.c_void_p * 1)(ctypes.addressof(self.buffer)), (ctypes.c_int * 1)(64)
        tags, memory = (ctypes.c_int * 1)(7), (ctypes.c_void_p * 1)(self.memory.value)
        for count in range(1000):
            request = ctypes.c_void_p()
            self.net.call("irecv", self.comm, ctypes.c_int(1), data, length, tags, memory,
                          ctypes.pointer(request))
            if not request.value:
                return count
        return 1000

    def transfer(self, fill, seconds, receive=None):
        """One message of 1 MiB, into a receive of `receive` bytes (1 MiB); the receiver answers
        whether all that fits is there and nothing past it."""
        net, size, whole = self.net, len(self.buffer), len(self.buffer)
        if self.role == "listen" and receive is not None:
            size = receive
            ctypes.memset(self.buffer, 0, whole)
        self.register()
        self.request = ctypes.c_void_p()
        if self.role == "listen":
            data, length = (ctypes.c_void_p * 1)(ctypes.addressof(self.buffer)), (ctypes.c_int * 1)(size)
            tags, memory = (ctypes.c_int * 1)(7), (ctypes.c_void_p * 1)(self.memory.value)
            args = ("irecv", seconds, self.request, self.comm, ctypes.c_int(1), data, length, tags,
                    memory, ctypes.pointer(self.request))
        else:
            ctypes.memset(self.buffer, fill, size)
            args = ("isend", seconds, self.request, self.comm, self.buffer, ctypes.c_int(size),
                    ctypes.c_int(7), self.memory, ctypes.pointer(self.request))
        if not net.until(*args):
            return False
        if self.role == "listen":
            print("posted", flush=True)
        done, sizes = ctypes.c_int(0), (ctypes.c_int * 8)()
        for _ in running(seconds):
            net.call("test", self.request, ctypes.pointer(done), sizes)
            if done.value:
                break
        expected = bytes([fill]) * size + bytes(whole - size)
        return bool(done.value) and (self.role == "connect" or
                                     (self.buffer.raw == expected and sizes[0] == size))

    def close(self):
        if self.memory:
            self.net.call("deregMr", self.comm, self.memory)
        self.net.call("closeRecv" if self.role == "listen" else "closeSend", self.comm)


def main():
    end = End(sys.argv[1], sys.argv[2])
    try:
        if not end.open(float(sys.argv[3]) if len(sys.argv) > 3 else 15):
            print("timeout", flush=True)
            return
        print("ok open", flush=True)
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "transfer":
                ok = end.transfer(int(rest[0]), float(rest[1]), *map(int, rest[2:]))
                print("ok" if ok else "timeout", flush=True)
            elif word == "outside":
                try:
                    end.outside()
                    print("ok posted", flush=True)
                except Refused as e:  # of this call only
                    print(f"error {e}", flush=True)
            elif word == "flood":
                print(f"ok {end.flood()}", flush=True)
            elif word == "fork":
                child = os.fork()
                if child == 0:
                    for fd in (0, 1, 2):  # the harness waits for the ends of these
                        os.close(fd)
                    while True:
                        time.sleep(1)
                print(f"ok {child}", flush=True)
            elif word == "close":
                end.close()
                print("ok closed", flush=True)
                return
    except Refused as e:
        print(f"error {e}", flush=True)


if __name__ == "__main__":
    main()
