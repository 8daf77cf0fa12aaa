"""net_perf --against: two plugins in turn, in one run, on one host and as a job; and --plot."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree

from net_perf_job_test import Job
from tool import NET_PERF, PLUGIN, SOCKET_PLUGIN, net_perf, net_perf_json

SHORT = ("--test", "latency", "--sizes", "8,4k", "--iters", 50, "--rounds", 2)
SVG = "{http://www.w3.org/2000/svg}"


def picture(file):
    """All words in an SVG file; fails when it is none."""
    root = xml.etree.ElementTree.parse(file).getroot()
    assert root.tag == SVG + "svg", root.tag
    return [e.text for e in root.iter(SVG + "text")], sum(1 for _ in root.iter(SVG + "path"))


class Against(unittest.TestCase):
    def check(self, report):
        self.assertEqual(report["failure"], "")
        self.assertEqual(report["plugin"]["name"], "Twinpath")
        self.assertEqual(report["against"]["name"], "Sockets")
        figures = [(r["size"], r["figure"]) for r in report["results"]]
        self.assertEqual(figures, [(size, figure) for size in (8, 4096)
                                   for figure in ("median_us", "p99_us", "cpu_us_per_message")])
        for row in report["results"]:
            self.assertEqual(row["wrong"], 0)
            self.assertEqual(len(row["rounds"]), 2)
            ratios = sorted(other / this for this, other in row["rounds"])
            self.assertAlmostEqual(row["ratio"]["least"], ratios[0])
            self.assertAlmostEqual(row["ratio"]["largest"], ratios[1])
            self.assertEqual(row["verdict"], "too few rounds")

    def test_each_round_has_figures_of_both(self):
        self.check(net_perf_json(*SHORT, "--against", SOCKET_PLUGIN))

    def test_every_test_that_has_workers(self):
        for test in ("bw", "bibw", "rate", "group", "step", "conns"):
            sizes = () if test == "conns" else ("--sizes", 64, "--iters", 50)
            report = net_perf_json("--test", test, *sizes, "--rounds", 2, "--against", SOCKET_PLUGIN)
            self.assertGreaterEqual(len(report["results"]), 1)

    def test_a_table_and_a_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            done = net_perf(*SHORT, "--against", SOCKET_PLUGIN, "--plot", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            for text in ("# this  ", "(Twinpath, net v12)", "# other ", "(Sockets, net v12)",
                         "2 rounds of each plugin in turn", "ratio"):
                self.assertIn(text, done.stdout)
            words, lines = picture(file)
            self.assertIn("this", words)
            self.assertIn("other", words)
            self.assertEqual(lines, 3 + 3 * 2)  # ratios, and both plugins in three panels

    def test_ranks_of_a_job_take_turns_together(self):
        job = Job(NET_PERF, 2, "--json", *SHORT, "--against", SOCKET_PLUGIN, launcher="OMPI",
                  env={"TWINPATH_FABRIC": "soft"})
        status, texts = job.end()
        self.assertEqual(status, [0, 0], texts)
        self.check(json.loads(texts[0][0]))
        self.assertEqual(texts[1][0], "")

    def test_a_fault_of_the_other_is_said_to_be_its(self):
        done = net_perf(*SHORT, "--against", SOCKET_PLUGIN, env={"SOCKET_PLUGIN_FAULT": "error"})
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"round 1, other, --against {SOCKET_PLUGIN}: ", done.stderr)
        self.assertIn("remote error", done.stderr)
        done = net_perf("--test", "bw", "--sizes", "4k", "--iters", 50, "--rounds", 2, "--against",
                        SOCKET_PLUGIN, env={"SOCKET_PLUGIN_FAULT": "corrupt"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("wrong data, round 1, other, worker 1", done.stderr)
        self.assertNotIn("this, worker", done.stderr)

    def test_the_time_for_all_rounds_is_limited(self):
        done = net_perf("--test", "latency", "--sizes", 8, "--iters", 2000000, "--rounds", 500,
                        "--timeout", 3, "--against", SOCKET_PLUGIN)
        self.assertEqual(done.returncode, 1)
        self.assertIn("timed out after", done.stderr)


class WrongUse(unittest.TestCase):
    def refused(self, *args, says):
        done = net_perf(*args)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_each_is_refused_with_a_reason(self):
        self.refused("--against", "/nowhere/libnccl-net.so",
                     says="--against /nowhere/libnccl-net.so: No such file or directory; give the")
        self.refused("--against", PLUGIN, "--threads", 2, says="leave out --threads")
        self.refused("--against", PLUGIN, "--test", "solo", says="--against is not for --test solo")
        self.refused("--against", PLUGIN, "--histogram", says="--histogram is of one plugin")
        self.refused("--rounds", 3, says="--rounds requires --against")
        self.refused("--against", PLUGIN, "--rounds", 1, says="--rounds")
        self.refused("--histogram", "--test", "bw", says="--histogram is for --test latency")
        self.refused("--plot", "x.svg", "--test", "callgrind", says="--plot is not for")
        self.refused("--plot", "/nowhere/x.svg",
                     says="--plot /nowhere/x.svg cannot be written: No such file or directory")

    def test_a_name_that_the_loader_does_not_find(self):
        done = net_perf(*SHORT, "--against", "nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("round 1, other, --against libnccl-net-nothing.so: ", done.stderr)
        self.assertIn("cannot load the net plugin", done.stderr)

    def test_a_library_that_is_no_plugin(self):
        done = net_perf(*SHORT, "--against", "libm.so.6")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is it an NCCL net plugin?", done.stderr)


class Plot(unittest.TestCase):
    def test_every_test_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            for test, expected in (("latency", "p99.9"), ("bw", "memcpy, one thread"),
                                   ("step", "time of a step"), ("conns", "receiver"),
                                   ("solo", "best")):
                with self.subTest(test):
                    sizes = () if test == "conns" else ("--sizes", "8,4k", "--iters", 50)
                    done = net_perf("--test", test, *sizes, "--repeats", 2, "--plot", file)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(expected, picture(file)[0])
                    os.unlink(file)

    def test_a_picture_that_is_lost_is_no_success(self):
        done = net_perf("--test", "latency", "--sizes", 8, "--iters", 50, "--plot", "/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--plot /dev/full cannot be written", done.stderr)

    def test_a_run_that_fails_leaves_no_empty_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            done = net_perf("--plot", file, "--dev", 5)
            self.assertEqual(done.returncode, 1)
            self.assertFalse(os.path.exists(file))

    def test_the_histogram_has_all_messages(self):
        report = net_perf_json("--test", "latency", "--sizes", "8,4k", "--iters", 300,
                               "--processes", 4)
        for row in report["results"]:
            self.assertEqual(sum(count for _, _, count in row["histogram_us"]), 600)
            self.assertLessEqual(row["histogram_us"][0][0], row["min_us"])
            self.assertGreater(row["histogram_us"][-1][1], row["max_us"])
            self.assertLessEqual(row["p99_us"], row["p999_us"])
            self.assertLessEqual(row["p999_us"], row["max_us"])
        done = net_perf("--test", "latency", "--sizes", 8, "--iters", 300, "--histogram")
        self.assertIn("p99.9", done.stdout)
        self.assertIn("###", done.stdout)


if __name__ == "__main__":
    unittest.main()
