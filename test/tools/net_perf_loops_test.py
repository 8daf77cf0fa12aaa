"""net_perf's loops and its step test, over the soft HCA and over a plugin whose transfers take
their time."""
import unittest

from tool import SOCKET_PLUGIN, net_perf, net_perf_json

SHORT = ("--iters", 400, "--repeats", 3)
LOOPS = {"one": (1, 1), "group": (8, 1), "poll": (1, 16)}  # messages of a group, window


class Loops(unittest.TestCase):
    def test_one_thread_counts_its_calls(self):
        for loop, (group, window) in LOOPS.items():
            with self.subTest(loop):
                report = net_perf_json("--test", "solo", "--loop", loop, "--sizes", "8,4k", *SHORT)
                self.assertEqual(report["options"]["loop"], loop)
                for row in report["results"]:
                    self.assertEqual((row["group"], row["window"]), (group, window))
                    self.assertGreater(row["median_messages_per_s"], 0)
                    self.assertGreater(row["median_cpu_ns_per_message"], 0)
                    calls = row["calls_per_message"]
                    useful = calls["isend"] + calls["test"] - calls["in_vain"]
                    self.assertAlmostEqual(calls["irecv"], 1 / group)
                    self.assertAlmostEqual(useful, 2 + 1 / group)

    def test_transfers_that_take_their_time_are_tested_again(self):
        for loop in LOOPS:
            with self.subTest(loop):
                report = net_perf_json("--test", "solo", "--loop", loop, "--sizes", "4k", *SHORT,
                                       plugin=SOCKET_PLUGIN)
                self.assertEqual(len(report["results"]), 1)

    def test_a_window_that_receives_fill_several_times_over(self):
        for window in (1, 2, 3, 64):
            report = net_perf_json("--test", "solo", "--loop", "poll", "--window", window, *SHORT)
            self.assertEqual(report["results"][0]["window"], window)

    def test_two_processes(self):
        for test in ("rate", "bw", "bibw"):
            for loop, (group, window) in LOOPS.items():
                with self.subTest(test=test, loop=loop):
                    report = net_perf_json("--test", test, "--loop", loop, "--sizes", "64", *SHORT)
                    row = report["results"][0]
                    self.assertEqual(report["options"]["group"], group)
                    self.assertEqual((row["window"], row["wrong"]), (window, 0))

    def test_counting_mode_says_how_often_it_called(self):
        done = net_perf("--test", "callgrind", "--loop", "one", "--iters", 100, "--no-verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("calls a message: irecv 1.000, isend ", done.stdout)

    def test_wrong_data_is_found(self):
        done = net_perf("--test", "solo", "--loop", "one", "--sizes", "4k", *SHORT,
                        plugin=SOCKET_PLUGIN, env={"SOCKET_PLUGIN_FAULT": "short"})
        self.assertEqual(done.returncode, 1, done.stdout)

    def test_what_does_not_go_together_is_refused(self):
        for args, says in ((("--loop", "two"), "there are window, one, group, poll"),
                           (("--test", "latency", "--loop", "one"), "not for --test latency"),
                           (("--test", "rate", "--loop", "one", "--window", 4), "no --window"),
                           (("--test", "group", "--loop", "one"), "one message at a time"),
                           (("--test", "rate", "--loop", "group", "--window", 4), "no --window"),
                           (("--test", "bw", "--loop", "poll", "--optional-recv"), "--loop window")):
            done = net_perf(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(says, done.stderr)


class Step(unittest.TestCase):
    def test_four_connections_of_eight_steps(self):
        report = net_perf_json("--test", "step", "--repeats", 3, "--iters", 200)
        row = report["results"][0]
        self.assertEqual((row["size"], row["connections"], row["window"]), (128 << 10, 4, 8))
        self.assertEqual((row["messages"], row["wrong"]), (200, 0))
        # Each connection moves one step in that time, so four do.
        bytes_per_us = 4 * row["size"] / row["median_us_per_step"]
        self.assertAlmostEqual(bytes_per_us / 1e3, row["median_gbytes_per_s"], places=6)
        self.assertLessEqual(row["min_us_per_step"], row["median_us_per_step"])
        self.assertLessEqual(row["median_us_per_step"], row["p99_us_per_step"])

    def test_its_numbers_can_be_others(self):
        report = net_perf_json("--test", "step", "--repeats", 2, "--iters", 60, "--sizes", "4k,512k",
                               "--connections", 2, "--window", 3, "--loop", "poll",
                               plugin=SOCKET_PLUGIN)
        for row in report["results"]:
            self.assertEqual((row["connections"], row["window"], row["wrong"]), (2, 3, 0))

    def test_the_table_has_its_unit(self):
        done = net_perf("--test", "step", "--repeats", 2, "--iters", 60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("us/step", done.stdout)


if __name__ == "__main__":
    unittest.main()
