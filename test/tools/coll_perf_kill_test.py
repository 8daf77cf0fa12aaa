"""coll_perf --cpu with a rank, or its launcher, killed in the middle of a run."""
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from tool import NO_JOB, PLUGIN, clean_environment

COLL_PERF = os.environ["COLL_PERF"]


def children(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    except OSError:
        return []


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def shared_memory():
    """Folders there are other tests'."""
    with os.scandir("/dev/shm") as entries:
        return {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}


class Killed(unittest.TestCase):
    """kill -9 in the middle of a long run: whoever is left ends, and nothing stays behind."""

    RANKS = 4

    def setUp(self):
        self.shm = shared_memory()
        self.job = f"coll-kill-{os.getpid()}-{time.monotonic_ns()}"
        self.text = tempfile.TemporaryFile("w+")
        self.launcher = subprocess.Popen(
            [COLL_PERF, "--cpu", str(self.RANKS), "--plugin", PLUGIN, "--algo", "ring", "-b", "1m",
             "-e", "1m", "-n", "1000000", "--timeout", "60"], stdin=subprocess.DEVNULL,
            stdout=self.text, stderr=self.text,
            env={**clean_environment(), **NO_JOB, "TWINPATH_SOFT_JOB": self.job})
        self.assertTrue(wait_until(lambda: len(children(self.launcher.pid)) == self.RANKS, 20))
        self.ranks = children(self.launcher.pid)
        # The title of the table comes after all connections stand.
        self.assertTrue(wait_until(lambda: "over net ABI" in self.output(), 30), self.output())
        time.sleep(0.5)

    def tearDown(self):
        for pid in [self.launcher.pid, *self.ranks]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()
        self.text.close()

    def output(self):
        self.text.flush()
        return os.pread(self.text.fileno(), 1 << 20, 0).decode(errors="replace")

    def nothing_left(self):
        self.assertTrue(wait_until(lambda: not any(map(alive, self.ranks)), 5), "ranks are left")
        self.assertEqual(shared_memory() - self.shm, set())
        # A process shows as ended a moment before its last thread has closed the sockets.
        self.assertTrue(wait_until(lambda: not self.has_sockets(), 5), "sockets are left")

    def has_sockets(self):
        return self.job in pathlib.Path("/proc/net/unix").read_text()

    def kill_rank(self, rank):
        self.assertTrue(self.has_sockets())
        begin = time.monotonic()
        os.kill(self.ranks[rank], signal.SIGKILL)
        try:
            self.launcher.wait(20)
        except subprocess.TimeoutExpired:
            self.fail("the launcher goes on\n" + self.output())
        took = time.monotonic() - begin
        text = self.output()
        self.assertLess(took, 10, text)
        self.assertEqual(self.launcher.returncode, 4, text)
        self.assertIn(f"rank {rank} (pid {self.ranks[rank]}) was ended by signal 9", text)
        for other in set(range(self.RANKS)) - {rank}:
            self.assertIn(f"coll_perf: rank {other}: ", text)  # each says why itself
            self.assertNotIn(f"rank {other} (pid {self.ranks[other]}) was ended", text)
        self.nothing_left()

    def test_the_last_rank(self):
        self.kill_rank(3)

    def test_the_first_rank(self):
        self.kill_rank(0)

    def test_the_launcher(self):
        self.launcher.kill()
        self.launcher.wait()
        self.nothing_left()


if __name__ == "__main__":
    unittest.main()
