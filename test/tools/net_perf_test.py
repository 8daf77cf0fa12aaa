"""net_perf over the soft HCA: each test gives sane figures and right data; bad arguments are
refused with a reason."""
import unittest

from tool import PLUGIN, NET_PERF, net_perf, net_perf_json, run

SHORT = ("--iters", 200, "--repeats", 3)


class Measures(unittest.TestCase):
    def check_rows(self, report, count):
        self.assertEqual(report["failure"], "")
        self.assertEqual(len(report["results"]), count)
        for row in report["results"]:
            self.assertEqual(row["wrong"], 0)

    def test_latency_orders_its_quantiles(self):
        report = net_perf_json("--test", "latency", "--sizes", "0,8,4k,100001", *SHORT)
        self.check_rows(report, 4)
        for row in report["results"]:
            self.assertEqual(row["samples"], 200)
            self.assertGreater(row["min_us"], 0)
            self.assertLessEqual(row["min_us"], row["median_us"])
            self.assertLessEqual(row["median_us"], row["p99_us"])
            self.assertLessEqual(row["p99_us"], row["max_us"])
            self.assertGreater(row["cpu_us_per_message"], 0)

    def test_bandwidth_stands_beside_a_memcpy_of_the_same_run(self):
        report = net_perf_json("--test", "bw", "-b", "4k", "-e", "256k", "-f", 8, *SHORT)
        self.check_rows(report, 3)
        self.assertEqual([r["size"] for r in report["results"]], [4096, 32768, 262144])
        for row in report["results"]:
            self.assertGreater(row["median_gbytes_per_s"], 0)
            self.assertGreater(row["memcpy_gbytes_per_s"], 0)
            ratio = row["median_gbytes_per_s"] / row["memcpy_gbytes_per_s"]
            self.assertAlmostEqual(row["ratio_to_memcpy"], ratio)
            self.assertGreaterEqual(row["best_gbytes_per_s"], row["median_gbytes_per_s"])
            self.assertGreaterEqual(row["median_gbytes_per_s"], row["p99_slowest_gbytes_per_s"])

    def test_both_directions_count_twice_the_messages(self):
        report = net_perf_json("--test", "bibw", "--sizes", "64k", *SHORT)
        self.check_rows(report, 1)
        self.assertEqual(report["results"][0]["messages"], 400)

    def test_rate_over_several_connections_and_pairs(self):
        report = net_perf_json("--test", "rate", "--connections", 4, "--processes", 4, *SHORT)
        self.check_rows(report, 1)
        self.assertEqual(report["results"][0]["messages"], 400)  # two pairs

    def test_grouped_receives_tell_tags_apart(self):
        for group in (2, 3, 8):
            report = net_perf_json("--test", "group", "--group", group, "--sizes", "8,1000,64k",
                                   *SHORT)
            self.check_rows(report, 3)

    def test_connections_report_time_and_memory(self):
        report = net_perf_json("--test", "conns", "--connections", "1,16,100")
        self.check_rows(report, 3)
        self.assertEqual([r["connections"] for r in report["results"]], [1, 16, 100])
        self.assertGreater(report["results"][2]["open_us_each"], 0)

    def test_threads_instead_of_processes(self):
        for test in ("latency", "bibw"):
            self.check_rows(net_perf_json("--test", test, "--threads", 2, "--sizes", "64k", *SHORT),
                            1)

    def test_every_table_version(self):
        for abi in (8, 9, 10, 11, 12):
            report = net_perf_json("--abi", f"v{abi}", "--sizes", "8", *SHORT)
            self.assertEqual(report["plugin"]["abi"], abi)
            self.check_rows(report, 1)

    def test_newest_table_is_the_default(self):
        self.assertEqual(net_perf_json("--sizes", 8, *SHORT)["plugin"]["abi"], 12)

    def test_optional_receive_completion_loses_nothing(self):
        report = net_perf_json("--test", "bw", "--optional-recv", "--sizes", "64,4k", *SHORT)
        self.check_rows(report, 2)

    def test_counting_mode_runs_in_one_thread(self):
        done = net_perf("--test", "callgrind", "--iters", 100)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("moved 100 messages of 8 bytes in one thread", done.stdout)


class Output(unittest.TestCase):
    def test_json_carries_circumstances_and_options(self):
        report = net_perf_json("--sizes", "8", *SHORT)
        self.assertEqual(report["tool"], "net_perf")
        for key in ("version", "commit", "build_type", "cpu", "host", "time", "cores"):
            self.assertTrue(report["circumstances"][key], key)
        self.assertEqual(report["circumstances"]["environment"], {"TWINPATH_FABRIC": "soft"})
        self.assertEqual(report["options"]["iters"], 200)
        self.assertEqual(report["plugin"]["device"]["name"], "soft0")

    def test_text_says_that_software_figures_are_not_a_network(self):
        done = net_perf("--sizes", "8", *SHORT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the figures are the cost of software, not of a network", done.stdout)
        self.assertNotIn("\033", done.stderr)  # no progress bar: stderr is not a terminal

    def test_help_names_units_and_examples(self):
        done = run(NET_PERF, "--help")
        self.assertEqual(done.returncode, 0)
        for text in ("Examples:", "--sizes", "seconds for the whole run", "powers of 1024"):
            self.assertIn(text, " ".join(done.stdout.split()))
        self.assertEqual(run(NET_PERF, "--version").returncode, 0)


class BadArguments(unittest.TestCase):
    def refused(self, *args, says):
        done = net_perf(*args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(says, done.stdout + done.stderr)

    def test_each_is_refused_with_a_reason(self):
        self.refused("--test", "speed", says="no test 'speed'; there are latency")
        self.refused("--sizes", "8,5x", says="'5x' is not a size")
        self.refused("--sizes", "2g", says="at most 1g")
        self.refused("--sizes", "8", "-b", "8", says="not both")
        self.refused("-b", "1m", "-e", "1k", says="the range is empty")
        self.refused("--abi", "v7", says="give v8 to v12")
        self.refused("--processes", 3, says="not an even number")
        self.refused("--processes", 2, "--threads", 2, says="--threads")
        self.refused("--group", 9, says="--group")
        self.refused("--connections", "1,2", says="is for --test conns")
        self.refused("--dmabuf", says="--dmabuf needs --gpu")
        self.refused("--frobnicate", says="--frobnicate")

    def failed(self, *args, says, **more):
        done = net_perf(*args, **more)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(says, done.stderr)

    def test_what_is_only_known_at_run_time_fails_with_a_reason(self):
        self.failed("--dev", "mlx5_7", says="no device 'mlx5_7'; there are: 0 soft0")
        self.failed("--dev", 5, says="no device '5'")
        self.failed(says="cannot load the net plugin", plugin="/nowhere/libnccl-net.so")
        self.failed(says="is it an NCCL net plugin?", plugin="libm.so.6")
        self.failed("--abi", 9, says="NCCL_IB_DISABLE=1: no device is offered", env={"TWINPATH_FABRIC": "verbs",
                                                               "NCCL_IB_DISABLE": "1"})


if __name__ == "__main__":
    unittest.main()
