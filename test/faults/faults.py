#!/usr/bin/env python3
"""Peers that die, what they leave behind, and the cases of adapters.py, bad_input.py and others.

Every case has a limit in seconds and must neither hang nor leave anything behind.
usage: faults.py --plugin SO --net-perf PROGRAM [--coll-perf PROGRAM] [--fake-cuda SO] [--likes NAMES]
                 [--only WORD]
"""
import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

import adapters  # their cases join CASES
import bad_input
import random_deaths
import two_users
from harness import CASES, Peer, Skip, case, connected, exchange, expect, shm, shut, warnings


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


CLONE_NEWNET = 0x40000000


def in_own_network(body):
    """Runs `body` in a child with a network of its own, of which only lo is there.  The processes that
    it starts share it, so the soft HCA works between them."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
                raise Skip("needs the right to make a network (unshare -n)")
            loopback("up")
            body()
            text = ""
        except Skip as why:
            text = f"skip {why}"
        except Exception as why:
            text = f"{type(why).__name__}: {why}"
        os.write(write, text.encode()[-4000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    if text.startswith("skip "):
        raise Skip(text[5:])
    expect(not text, text)


def loopback(state):
    try:
        subprocess.run(["ip", "link", "set", "lo", state], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as why:
        raise Skip(f"needs ip and the right to use it: {why}")


@case
def a_control_network_that_is_away_for_10_seconds_ends_nothing(args):
    def body():
        listener, sender = connected(args)
        waiting, blocked = connected(args)
        exchange(listener, sender)
        # One connection idles, of the other the receiver waits for a message all the while.
        waiting.say("transfer 3 40")
        expect(waiting.hear() == "posted", "receive was not posted")
        loopback("down")
        time.sleep(10)
        loopback("up")
        time.sleep(2)
        blocked.say("transfer 3 20")
        answers = blocked.hear(), waiting.hear()
        expect(answers == ("ok", "ok"), lambda: f"{answers}\n{blocked.end()}{waiting.end()}")
        exchange(listener, sender)
        shut(listener, sender, waiting, blocked)
    in_own_network(body)


@case
def a_process_killed_while_its_fork_lives_is_noticed_within_10_seconds(args):
    listener, sender = connected(args)
    exchange(listener, sender)
    sender.say("fork")
    forked = sender.hear()
    expect(forked.startswith("ok "), f"fork: {forked}")
    listener.say("transfer 1 30")
    expect(listener.hear() == "posted", "receive was not posted")
    try:
        sender.p.send_signal(signal.SIGKILL)
        answer = listener.hear(10)
        text = listener.end()
        expect(answer.startswith("error"), f"{answer}\n{text}")
        expect("process ended without closing" in warnings(text), f"the cause is not named: {text}")
    finally:
        os.kill(int(forked.split()[1]), signal.SIGKILL)
        sender.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--net-perf", required=True)
    parser.add_argument("--coll-perf")
    parser.add_argument("--fake-cuda")
    parser.add_argument("--likes", default=",".join(adapters.KINDS), help="kinds of adapters that suites are run over")
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
