"""What people do wrong with the tools: each is told what, by which option or variable, once, and the
exit status says it too."""
import os
import subprocess
import tempfile
import unittest

from tool import INFO, NET_PERF, NO_JOB, PLUGIN, SOCKET_PLUGIN, clean_environment, net_perf, run

TOPO = os.environ["TWINPATH_TOPO"]
COLL_PERF = os.environ.get("COLL_PERF")
SLOW_MMAP = os.environ.get("SLOW_MMAP")
QUICK = ("--test", "latency", "--sizes", "8", "--iters", 20, "--repeats", 2)
SOFT = {**NO_JOB, "TWINPATH_FABRIC": "soft"}


class LostOutput(unittest.TestCase):
    """/dev/full takes nothing: no result, no success."""

    def fails(self, status, *words):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env={**clean_environment(), **SOFT}, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(os.path.basename(words[0]) + ": the output cannot be written", done.stderr)

    def test_info(self):
        for args in (["--json"], [], ["--options"], ["--markdown"]):
            self.fails(1, INFO, *args)

    def test_topo(self):
        for args in (["--json"], [], ["check"], ["tree", "--json"]):
            self.fails(3, TOPO, *args)

    def test_net_perf(self):
        for args in (["--json"], []):
            self.fails(1, NET_PERF, "--plugin", PLUGIN, "--timeout", 30, *QUICK, *args)

    def test_coll_perf(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        for args in (["--json"], []):
            self.fails(4, COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1, "-w", 0,
                       *args)

    def test_help(self):
        self.fails(1, INFO, "--help")
        self.fails(3, TOPO, "--help")
        self.fails(1, NET_PERF, "--help")


class EmptyRange(unittest.TestCase):
    def test_a_range_of_sizes_that_is_empty(self):
        done = net_perf("-b", "8k", "-e", "1k")
        self.assertEqual(done.returncode, 2)
        self.assertIn("the range is empty: -b 8k is above -e 1k", done.stderr)
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", "8k", "-e", "1k", env=SOFT)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("--begin 8k is above --end 1k", done.stderr)
        self.assertNotIn("OK", done.stdout)


class Pictures(unittest.TestCase):
    def test_a_file_that_cannot_be_written_is_said_before_anything_runs(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        for words in (["--cpu", 2], ["--cpu", 2, "--rank", "0/2", "--rendezvous", "127.0.0.1:9"]):
            done = run(COLL_PERF, *words, "--plugin", PLUGIN, "--plot", "/nowhere/x.svg", env=SOFT)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("--plot /nowhere/x.svg cannot be written: No such file", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertNotIn("busbw", done.stdout)

    def test_a_picture_that_is_lost_is_no_success(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1, "--plot",
                   "/dev/full", env=SOFT)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("--plot /dev/full cannot be written", done.stderr)

    def test_the_picture(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 128, "-n", 1, "--plot",
                       file, env=SOFT)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(file, encoding="utf-8") as svg:
                text = svg.read()
            for words in ("bus bandwidth", "all_reduce ring float", "all_reduce tree float"):
                self.assertIn(words, text)


class Files(unittest.TestCase):
    def test_a_file_that_is_no_platform_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as other:
            other.write("root:x:0:0:secret\nbin:x:1:1:secret\n")
            other.flush()
            done = run(TOPO, "--platform-file", other.name)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(f"--platform-file {other.name}: is no platform file", done.stderr)
            self.assertNotIn("secret", done.stderr)
            # The plugin goes on without it, and says which variable it was.
            done = net_perf(*QUICK, env={"TWINPATH_PLATFORM_FILE": other.name})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count(other.name), 1, done.stderr)
            self.assertIn(f"TWINPATH_PLATFORM_FILE: {other.name}: is no platform file", done.stderr)
            self.assertNotIn("secret", done.stderr)
        done = run(TOPO, "--platform-file", "/nowhere/platform")
        self.assertEqual(done.returncode, 3)
        self.assertIn("--platform-file /nowhere/platform: cannot be read: No such file", done.stderr)

    def test_a_topology_that_is_not_there(self):
        done = net_perf(*QUICK, env={"TWINPATH_TOPOLOGY": "/nonexistent"})
        self.assertEqual(done.returncode, 0, done.stderr)  # placement only
        lines = [line for line in done.stderr.splitlines() if "/nonexistent" in line]
        self.assertEqual(len(lines), 1, done.stderr)  # of two workers
        self.assertIn("TWINPATH_TOPOLOGY", lines[0])
        self.assertIn("no such file", lines[0])


class Once(unittest.TestCase):
    def test_workers_that_find_the_same_fault_say_it_once(self):
        for more in ((), ("--threads", 2), ("--processes", 4)):
            with self.subTest(more):
                done = net_perf(*QUICK, *more, env={"TWINPATH_SOFT_HCAS": "soft0,speed=x"})
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stderr.count("expected Gbit/s"), 1, done.stderr)
                self.assertEqual(done.stderr.count("init failed"), 1, done.stderr)
                self.assertIn("worker 0, worker 1", done.stderr)
        done = net_perf(*QUICK, env={"TWINPATH_MODE": "bogus"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("is refused"), 1, done.stderr)

    def test_every_line_where_every_line_is_asked_for(self):
        done = net_perf(*QUICK, "--verbose", env={"TWINPATH_MODE": "bogus"})
        self.assertEqual(done.stderr.count("is refused"), 2, done.stderr)

    def test_ranks_that_find_the_same_fault_say_it_once(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 4, "--plugin", PLUGIN, "-b", 8, "-e", 8,
                   env={**SOFT, "TWINPATH_SOFT_HCAS": "soft0,speed=x"})
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stderr.count("expected Gbit/s"), 1, done.stderr)


class Timeouts(unittest.TestCase):
    def test_net_perf_does_not_blame_the_plugin_for_its_own_memory(self):
        if SLOW_MMAP is None:
            self.skipTest("a sanitizer's runtime wants to be preloaded first")
        done = net_perf("--test", "latency", "--sizes", "64k", "--timeout", 1, plugin=SOCKET_PLUGIN,
                        env={"LD_PRELOAD": SLOW_MMAP})
        self.assertEqual(done.returncode, 1)
        self.assertIn("timed out after 1.0 s in phase 'allocate ", done.stderr)
        self.assertIn("net_perf's own work", done.stderr)
        self.assertIn("--timeout", done.stderr)
        self.assertNotIn("may be blocking", done.stderr)


class Info(unittest.TestCase):
    def test_a_setting_that_is_refused_later_fails_as_well(self):
        for name, value in (("TWINPATH_SOFT_HCAS", "soft0,speed=x"), ("NCCL_IB_HCA", ":::"),
                            ("TWINPATH_TOPOLOGY", "/nonexistent"), ("TWINPATH_MODE", "bogus")):
            for args in ((), ("--json",)):
                with self.subTest(name):
                    done = run(INFO, *args, env={**SOFT, name: value})
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                    self.assertIn(name if name != "TWINPATH_SOFT_HCAS" else "speed=x", done.stderr)
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = run(INFO, env=SOFT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
