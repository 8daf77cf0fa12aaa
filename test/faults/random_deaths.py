"""Many jobs whose processes are killed or stopped at random moments: whoever is left ends soon with
its reason, or goes on with right data, and nothing stays behind.

A few of each by default; TWINPATH_LONG=1 makes them 600 killed jobs and stops of 1, 5 and 30 s.
TWINPATH_TEST_SEED chooses other moments:

    TWINPATH_LONG=1 test/faults/faults.py --plugin SO --net-perf PROGRAM --coll-perf PROGRAM --only killed"""
import collections
import contextlib
import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

from harness import case, environment, expect, shm
from net import running

LONG = os.environ.get("TWINPATH_LONG", "0") != "0"
SEED = int(os.environ.get("TWINPATH_TEST_SEED", "1"))
ENDS = 20  # seconds in which whoever is left must end; a busy host's processes crawl
LATE = 10  # seconds after its start in which a job is to be killed: it ends itself after 60
PR_SET_CHILD_SUBREAPER = 36


def stat(pid):
    """(state, process group), or None when it is gone."""
    try:
        field = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return field[0], int(field[2])
    except OSError:
        return None


def wait_until(condition, seconds):
    for step in running(seconds, 0.01):
        if condition():
            return True
        time.sleep(step)
    return condition()


class Job:
    """A tool that starts processes of its own, in a process group of its own."""

    def __init__(self, args, words, name):
        self.name, self.words = name, words
        self.text = tempfile.TemporaryFile()
        self.p = subprocess.Popen([*words, "--plugin", args.plugin], stdin=subprocess.DEVNULL, stdout=self.text,
                                  stderr=self.text, start_new_session=True,
                                  env=environment(TWINPATH_SOFT_JOB=name))

    def children(self):
        try:
            return [int(c) for c in
                    pathlib.Path(f"/proc/{self.p.pid}/task/{self.p.pid}/children").read_text().split()]
        except OSError:
            return []

    def ended(self, limit):
        return wait_until(lambda: self.p.poll() is not None, limit)

    def left(self):
        """Its processes that have not ended."""
        found = []
        for entry in os.listdir("/proc"):
            seen = stat(entry) if entry.isdigit() else None
            if seen and seen[1] == self.p.pid and seen[0] not in "ZX":
                found.append(int(entry))
        return found

    def output(self):
        return os.pread(self.text.fileno(), 1 << 20, 0).decode(errors="replace")

    def end(self):
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.p.wait()
        try:
            while os.waitpid(-self.p.pid, 0)[0] > 0:  # those that it left to us
                pass
        except ChildProcessError:
            pass
        self.text.close()

    def check_nothing_left(self):
        expect(wait_until(lambda: not self.left(), ENDS), lambda: f"processes are left: {self.left()}\n{self.output()}")
        # A process shows as ended a moment before its last thread has closed the sockets.
        sockets = pathlib.Path("/proc/net/unix")
        expect(wait_until(lambda: self.name not in sockets.read_text(), 5), "sockets are left")


def adopt_orphans():
    """Who loses its launcher becomes a child of this process, which sees when it ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def endless(args, seed):
    """Words of a job that goes on for as long as it may."""
    if seed.random() < 0.5 and args.coll_perf:
        size = seed.choice(["64", "64k", "1m"])
        return [args.coll_perf, "--timeout", "60", "--cpu", str(seed.randint(2, 4)), "--algo",
                seed.choice(["ring", "tree"]), "-b", size, "-e", size, "-n", "1000000"]
    return [args.net_perf, "--timeout", "60", "--test", seed.choice(["bw", "bibw", "latency", "group", "rate"]),
            "--sizes", seed.choice(["8", "4k", "256k"]), "--iters", "100000000", "--repeats", "100",
            "--connections", seed.choice(["1", "3"])]


def expect_right(job, limit):
    """It ends by itself, with every element and byte checked."""
    expect(job.ended(limit), lambda: f"does not end\n{job.output()}")
    text = job.output()
    expect(job.p.returncode == 0, f"{job.words}: status {job.p.returncode}\n{text}")
    if "coll_perf" in job.words[0]:
        expect("# Out of bounds values : 0 OK" in text, text)
    else:
        document = json.loads(text[text.index("{"):])
        expect(not any(row["wrong"] for row in document["results"]), text)


def finite(words, iterations):
    """The same job with an end, and payloads checked at that."""
    words = list(words)
    coll = "coll_perf" in words[0]
    words[words.index("-n" if coll else "--iters") + 1] = str(iterations)
    if not coll:
        words[words.index("--repeats") + 1] = "1"
    return words if coll else [*words, "--json"]


def said_by_all(job, children, victims):
    """Who was killed is named, and each of the others says itself why it ends."""
    text = job.output()
    if "coll_perf" in job.words[0]:
        for rank, pid in enumerate(children):
            said = f"rank {rank} (pid {pid}) was ended by signal 9" if pid in victims else f"coll_perf: rank {rank}: "
            expect(said in text, f"no word of {said!r}\n{text}")
        return
    for number, pid in enumerate(children):
        said = f"worker {number}: was killed by signal Killed" if pid in victims else f"worker {number}: "
        expect(said in text, f"no word of {said!r}\n{text}")


def kill_some(args, number, seed, sums):
    """Whether it came to that: a job on a machine that stood still may have reached its own end."""
    words = endless(args, seed)
    job = Job(args, words, f"deaths-{os.getpid()}-{number}")
    try:
        # From before the first socket to the middle of the data; in half of them while it connects.
        started = time.monotonic()
        time.sleep(seed.choice([seed.uniform(0.0, 0.15), seed.uniform(0.1, 1.0)]))
        if time.monotonic() - started > LATE:
            return False
        children = job.children()
        launcher = not children or seed.random() < 0.1
        victims = [job.p.pid] if launcher else seed.sample(children, min(len(children), seed.choice([1, 1, 1, 1, 2])))
        ranks = int(words[words.index("--cpu") + 1]) if "--cpu" in words else 2
        begin = time.monotonic()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # the first one's end was the others', too
                os.kill(pid, signal.SIGKILL)
        expect(job.ended(ENDS), lambda: f"whoever is left goes on\n{job.output()}")
        status = job.p.returncode
        job.check_nothing_left()
        took, text = time.monotonic() - begin, job.output()
        sums["slowest"] = max(sums["slowest"], took)
        sums["launchers" if launcher else "processes"] += len(victims)
        expect(status != 0, f"ended well, although killed {begin - started:.2f} s after its start\n{text}")
        for word in ("wrong data", "differs from byte", "signal 6", "signal 11", "timed out"):
            expect(word not in text, f"{word!r}\n{text}")
        if launcher:
            return True
        expect(status in (1, 4), f"status {status}\n{text}")
        if len(children) == ranks:  # else the launcher was still starting them
            said_by_all(job, children, victims)
            sums["said by all"] += 1
        return True
    finally:
        job.end()


def run_whole(args, number, seed):
    job = Job(args, finite(endless(args, seed), 50), f"whole-{os.getpid()}-{number}")
    try:
        expect_right(job, 60)
        job.check_nothing_left()
    finally:
        job.end()


@case
def random_jobs_with_processes_killed_end_with_a_reason_and_leave_nothing(args):
    adopt_orphans()
    before, seed, sums = shm(), random.Random(SEED), collections.Counter()
    for number in range(600 if LONG else 3):
        try:
            while not kill_some(args, number, seed, sums):
                pass
            if number % 10 == 2:
                run_whole(args, number, seed)
        except AssertionError as why:
            raise AssertionError(f"job {number} of seed {SEED}: {why}") from None
    expect(shm() == before, f"/dev/shm holds {shm() - before}")
    print(f"    {sums['processes']} processes and {sums['launchers']} launchers killed; the slowest job ended "
          f"after {sums['slowest']:.2f} s; in {sums['said by all']} each process left said why", flush=True)


def stop_one(args, words, seconds, number):
    """What came after the stop is checked: elements, and the payloads of the second size."""
    iterations = 5000 if "coll_perf" in words[0] else 100000
    while True:
        job = Job(args, finite(words, iterations), f"stopped-{os.getpid()}-{number}")
        try:
            expect(wait_until(lambda: job.p.poll() is not None or len(job.children()) > 1, 30), "does not start")
            time.sleep(1)
            children = job.children()
            if job.p.poll() is None and children:
                victim, alive = children[-1], False
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
                    os.kill(victim, signal.SIGSTOP)
                    time.sleep(seconds)
                    alive = job.p.poll() is None and stat(victim)[0] == "T"
                    os.kill(victim, signal.SIGCONT)
                expect_right(job, 120)
                expect("WARN" not in job.output(), job.output())
                if alive:
                    return
            # It was done too early to be stopped.
            expect(iterations < 10 ** 8, "ends however long it is made")
            iterations *= 3
        finally:
            job.end()


@case
def a_process_that_stands_still_and_goes_on_costs_nothing_but_time(args):
    adopt_orphans()
    for seconds in (1, 5, 30) if LONG else (1,):
        jobs = [[args.net_perf, "--timeout", "200", "--test", "bw", "--sizes", "64k,1000", "--iters", "1",
                 "--repeats", "1", "--connections", "3"]]
        if args.coll_perf:
            jobs.append([args.coll_perf, "--timeout", "200", "--cpu", "4", "--algo", "ring", "-b", "64k",
                         "-e", "64k", "-n", "1"])
        for number, words in enumerate(jobs):
            stop_one(args, words, seconds, number)
