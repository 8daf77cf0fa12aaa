"""Two users on one host, by setpriv: their jobs do not meet, whatever they are called and whoever
holds whose handle."""
import os
import shutil
import subprocess
import sys

from bad_input import listening_port
from harness import Peer, Skip, case, connected, exchange, expect, shut, warnings

NOBODY = 65534


def as_nobody(args):
    """Words before a command that another user runs then."""
    if os.geteuid() != 0:
        raise Skip("only root can run something as another user")
    if shutil.which("setpriv") is None:
        raise Skip("setpriv is not installed")
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if subprocess.run([*words, "cat", args.plugin, __file__], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("another user may not read the plugin here, or setpriv may not change the user")
    return words


@case
def jobs_of_two_users_with_one_name_work_side_by_side(args):
    theirs = as_nobody(args)
    pairs = [connected(args, TWINPATH_SOFT_JOB="shared"),
             connected(args, prefix=theirs, TWINPATH_SOFT_JOB="shared")]
    for fill in (17, 99):
        for listener, sender in pairs:
            exchange(listener, sender, fill)
    for listener, sender in pairs:
        shut(listener, sender)


@case
def another_user_who_has_the_handle_is_not_connected_and_both_ends_say_why(args):
    theirs = as_nobody(args)
    limits = {"TWINPATH_CONNECT_TIMEOUT_MS": "4000"}
    for first, second in (((), theirs), (theirs, ())):
        listener = Peer(args, "listen", prefix=first, **limits)
        sender = Peer(args, "connect", prefix=second, **limits)
        handle = listener.hear()
        sender.say(handle)
        listener.say("go")
        answers = sender.hear(), listener.hear()
        texts = sender.end(), listener.end()
        # The listener's adapter finds out (ncclSystemError), and the sender is told (ncclRemoteError).
        for answer, error, text in zip(answers, ("error 6", "error 2"), texts):
            expect(answer.startswith(error), f"{answer}\n{text}")
            expect("of another user" in warnings(text), f"the cause is not named: {text}")


# Says nothing, says rubbish, and guesses; until its stdin ends.
STRANGERS = """
import os, socket, sys
held = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) for _ in range(150)]
for s in held[::3]: s.sendall(os.urandom(300))
for s in held[1::3]: s.sendall(b"WTPF" + bytes.fromhex("0500010004000000") + os.urandom(20))
print("called", flush=True)
sys.stdin.read()
"""


@case
def another_user_who_calls_a_listener_150_times_keeps_nobody_out(args):
    theirs = as_nobody(args)
    crowd = []

    def call(listener):
        address, port = listening_port(listener.p.pid)
        crowd.append(subprocess.Popen([*theirs, sys.executable, "-c", STRANGERS, address, str(port)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        expect(crowd[0].stdout.readline() == b"called\n", "the strangers do not call")

    try:
        listener, sender = connected(args, call)
        exchange(listener, sender)
        listener.say("close")
        sender.say("close")
        text = listener.end()
        sender.end()
        expect(len(warnings(text).splitlines()) == 1, f"not one line about strangers: {text}")
    finally:
        for p in crowd:
            p.kill()
            p.communicate()
