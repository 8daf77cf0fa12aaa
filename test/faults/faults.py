#!/usr/bin/env python3
"""Bad environments and peers that die: cases that need processes.

Every case has a limit in seconds and must neither hang nor leave anything behind.
usage: faults.py --plugin SO --net-perf PROGRAM [--fake-cuda SO] [--only WORD]
"""
import argparse
import json
import os
import pathlib
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import time

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
    """One net.py process."""

    def __init__(self, args, role, seconds=15, **env):
        self.p = subprocess.Popen([sys.executable, str(HERE / "net.py"), args.plugin, role, str(seconds)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=environment(**env))

    def say(self, line):
        self.p.stdin.write((line + "\n").encode())
        self.p.stdin.flush()

    def hear(self, seconds=20):
        """One line, or 'silent' when none comes in time."""
        line, end = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            if not select.select([self.p.stdout], [], [], max(0, end - time.monotonic()))[0]:
                return "silent"
            byte = os.read(self.p.stdout.fileno(), 1)
            if not byte:
                return f"gone {self.p.wait()}"
            line += byte
        return line.decode().strip()

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
    return set(os.listdir("/dev/shm"))


@case
def a_run_leaves_and_puts_nothing_in_dev_shm(args):
    before = shm()
    listener, sender = connected(args)
    exchange(listener, sender)
    expect(shm() == before, f"during a run /dev/shm holds {shm() - before}")
    shut(listener, sender)
    expect(shm() == before, f"after a run /dev/shm holds {shm() - before}")


@case
def processes_killed_with_a_receive_posted_leave_nothing_behind(args):
    before = shm()
    job = f"kill-{os.getpid()}"
    listener, sender = connected(args, TWINPATH_SOFT_JOB=job)
    exchange(listener, sender)
    expect(job in pathlib.Path("/proc/net/unix").read_text(), "no socket of the job is seen while it runs")
    listener.say("transfer 1 30")  # stays open: nothing is sent
    expect(listener.hear() == "posted", "receive was not posted")
    for p in (listener, sender):
        p.p.send_signal(signal.SIGKILL)
        p.end()
    expect(shm() == before, f"after kill -9 /dev/shm holds {shm() - before}")
    expect(job not in pathlib.Path("/proc/net/unix").read_text(), "a socket of the job is still there")


@case
def a_full_dev_shm_does_not_matter(args):
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode != 0:
        raise Skip("needs the right to mount (unshare -m)")
    script = ('mount -t tmpfs -o size=64k tmpfs /dev/shm && '
              '{ dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null; exec "$@"; }')
    done = net_perf(args, "--test", "bw", "--sizes", "64k",
                    prefix=("unshare", "-m", "sh", "-c", script, "sh"))
    moved_data(done)


@case
def no_locked_memory_is_enough_for_the_soft_hca(args):
    done = net_perf(args, "--test", "latency", "--sizes", "8",
                    preexec=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)))
    moved_data(done)


@case
def processes_of_two_jobs_do_not_reach_each_other_and_neither_hangs(args):
    listener = Peer(args, "listen", 12, TWINPATH_SOFT_JOB="blue", TWINPATH_CONNECT_TIMEOUT_MS="3000")
    sender = Peer(args, "connect", 12, TWINPATH_SOFT_JOB="green", TWINPATH_CONNECT_TIMEOUT_MS="3000")
    handle = listener.hear()
    listener.say("go")
    sender.say(handle)
    answer = sender.hear(15)
    text = sender.end()
    listener.end()
    expect(answer.startswith("error"), f"connect between jobs said: {answer}\n{text}")
    expect("TWINPATH_SOFT_JOB" in warnings(text), f"the warning does not name TWINPATH_SOFT_JOB: {text}")


@case
def the_survivor_of_a_killed_peer_gets_an_error_within_10_seconds(args):
    listener, sender = connected(args)
    exchange(listener, sender)
    listener.say("transfer 1 30")
    expect(listener.hear() == "posted", "receive was not posted")
    sender.p.send_signal(signal.SIGKILL)
    start = time.monotonic()
    answer = listener.hear(10)
    took = time.monotonic() - start
    sender.end()
    text = listener.end()
    expect(answer.startswith("error"), f"after {took:.1f} s: {answer}\n{text}")
    expect(f"{sender.p.pid}" in warnings(text), f"no warning names the dead process: {text}")


@case
def the_sender_to_a_killed_receiver_gets_an_error_within_10_seconds(args):
    listener, sender = connected(args)
    exchange(listener, sender)
    listener.p.send_signal(signal.SIGKILL)
    sender.say("transfer 1 30")
    answer = sender.hear(10)
    listener.end()
    text = sender.end()
    expect(answer.startswith("error"), f"{answer}\n{text}")


def listening_port(pid):
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except OSError:
            pass
    for name in ("tcp", "tcp6"):
        path = pathlib.Path(f"/proc/{pid}/net/{name}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            field = line.split()
            if field[3] == "0A" and f"socket:[{field[9]}]" in inodes:
                address, port = field[1].split(":")
                if len(address) == 8:
                    return socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)
    raise Skip("the listen socket is not an IPv4 one")


@case
def a_port_scanner_on_the_listen_socket_is_ignored(args):
    held = []

    def scan(listener):
        where = listening_port(listener.p.pid)
        seed = random.Random(5)
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(28), seed.randbytes(4096), b"TWPF",
                     b"WTPF" + seed.randbytes(60)):
            s = socket.create_connection(where, timeout=5)
            s.sendall(data)
            held.append(s)  # some stay open, as a slow peer would
        for s in held[::2]:
            s.close()

    listener, sender = connected(args, scan)
    exchange(listener, sender)
    shut(listener, sender)
    for s in held:
        s.close()


@case
def a_damaged_handle_is_refused(args):
    listener = Peer(args, "listen")
    handle = bytes.fromhex(listener.hear())
    for damaged in (bytes(128), handle[:20] + bytes(108), handle[:4] + b"\xff" + handle[5:],
                    handle[:40] + bytes(88), os.urandom(128)):
        sender = Peer(args, "connect", 5)
        sender.say(damaged.hex())
        answer = sender.hear()
        text = sender.end()
        expect(answer.startswith("error"), f"{damaged.hex()}: {answer}\n{text}")
        expect("connect" in warnings(text), f"{damaged.hex()}: no warning says why: {text}")
    listener.end()


@case
def an_unknown_device_name_gives_no_device_and_a_message_with_the_names(args):
    peer = Peer(args, "listen", NCCL_IB_HCA="=nosuch0")
    answer = peer.hear()
    text = peer.end()
    expect(answer == "error 0 devices", answer)
    expect("nosuch0" in warnings(text) and "soft0" in warnings(text), text)


@case
def a_bad_option_value_is_named_and_the_default_kept(args):
    listener, sender = connected(args, TWINPATH_STRIPE_MIN="lots")
    exchange(listener, sender)
    sender.say("close")
    sender.hear()
    text = sender.end()
    listener.end()
    expect("TWINPATH_STRIPE_MIN" in warnings(text) and "lots" in warnings(text), text)


@case
def a_cuda_library_without_a_driver_does_not_matter_for_host_memory(args):
    if not args.fake_cuda:
        raise Skip("no stand-in for libcuda.so.1 was built")
    done = net_perf(args, "--test", "bw", "--sizes", "64k", LD_PRELOAD=args.fake_cuda)
    moved_data(done)


@case
def without_an_adapter_auto_gives_no_device_and_says_what_to_set(args):
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        raise Skip("there is an RDMA adapter here")
    peer = Peer(args, "listen", TWINPATH_FABRIC="auto")
    answer = peer.hear()
    text = peer.end()
    expect(answer.startswith("error"), answer)
    expect("TWINPATH_FABRIC=soft" in text, f"no hint at the soft HCA: {text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--net-perf", required=True)
    parser.add_argument("--fake-cuda")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    passed = failed = skipped = 0
    for run in CASES:
        if args.only not in run.__name__:
            continue
        name, start = run.__name__.replace("_", " "), time.monotonic()
        try:
            run(args)
            passed += 1
            print(f"ok: {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Skip as why:
            skipped += 1
            print(f"skipped: {name}: {why}", flush=True)
        except Exception as why:
            failed += 1
            print(f"FAILED: {name}: {type(why).__name__}: {why}", flush=True)
    print(f"cases: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0 if passed else 77)


if __name__ == "__main__":
    main()
