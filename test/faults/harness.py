"""What the cases of this folder share: processes with an end of a connection each (net.py),
net_perf, and checks.  A case is a function marked @case; faults.py runs them all."""
import json
import os
import pathlib
import select
import subprocess
import sys

from net import running

HERE = pathlib.Path(__file__).resolve().parent
CASES = []


class Skip(Exception):
    pass


def case(function):
    CASES.append(function)
    return function


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "TWINPATH_"))}
    env.update(TWINPATH_FABRIC="soft", TWINPATH_SOFT_JOB=f"faults-{os.getpid()}")
    env.update(more)
    return env


class Peer:
    """One net.py process; `prefix` are words before its command."""

    def __init__(self, args, role, seconds=15, prefix=(), **env):
        self.p = subprocess.Popen([*prefix, sys.executable, str(HERE / "net.py"), args.plugin, role, str(seconds)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=environment(**env))

    def say(self, line):
        self.p.stdin.write((line + "\n").encode())
        self.p.stdin.flush()

    def hear(self, seconds=20):
        """One line, or 'silent' when none comes in time."""
        line = b""
        for step in running(seconds):
            while select.select([self.p.stdout], [], [], step)[0]:
                byte = os.read(self.p.stdout.fileno(), 1)
                if not byte:
                    return f"gone {self.p.wait()}"
                if byte == b"\n":
                    return line.decode().strip()
                line += byte
        return "silent"

    def end(self):
        if self.p.poll() is None:
            self.p.kill()
        return self.p.communicate()[1].decode(errors="replace")


def expect(condition, what):
    if not condition:
        raise AssertionError(what() if callable(what) else what)


def warnings(text):
    return "\n".join(line for line in text.splitlines() if line.startswith("WARN "))


def connected(args, mischief=None, **env):
    """A listener and a sender; `env` goes to both, `prefix` among it."""
    listener, sender = Peer(args, "listen", **env), Peer(args, "connect", **env)
    handle = listener.hear()
    expect(len(handle) == 256, f"listen: {handle}")
    if mischief:
        mischief(listener)
    listener.say("go")
    sender.say(handle)
    a, b = sender.hear(), listener.hear()
    expect((a, b) == ("ok open", "ok open"),
           lambda: f"connect: {a}; accept: {b}\n{sender.end()}{listener.end()}")
    return listener, sender


def exchange(listener, sender, fill=0x5A):
    """`fill` is what the receiver wants to find and the sender sends."""
    listener.say(f"transfer {fill} 10")
    sender.say(f"transfer {fill} 10")
    expect(listener.hear() == "posted", "receive was not posted")
    a, b = sender.hear(), listener.hear()
    expect((a, b) == ("ok", "ok"), f"send: {a}; receive: {b}")


def shut(*peers):
    for p in peers:
        p.say("close")
    for p in peers:
        answer = p.hear()
        expect(answer == "ok closed", f"close: {answer}")
        p.p.wait(10)
        p.end()


def net_perf(args, *options, limit=60, preexec=None, prefix=(), **env):
    return subprocess.run([*prefix, args.net_perf, "--plugin", args.plugin, "--iters", "200", "--repeats", "2",
                           "--json", *options], env=environment(**env), capture_output=True, text=True, timeout=limit,
                          stdin=subprocess.DEVNULL, preexec_fn=preexec)


def moved_data(done):
    expect(done.returncode == 0 and json.loads(done.stdout), done.stderr + done.stdout)


def shm():
    """Folders there are other tests'; shared memory is files."""
    with os.scandir("/dev/shm") as entries:
        return {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}
