"""net_perf against a plugin that goes wrong on demand: wrong data is seen, nothing hangs, and the
message says what happened where."""
import time
import unittest

from tool import SOCKET_PLUGIN, net_perf, net_perf_json


class Faults(unittest.TestCase):
    def run_with(self, fault, *args, timeout=20):
        begin = time.monotonic()
        done = net_perf("--test", "bw", "--sizes", "4k", "--iters", 300, "--repeats", 2,
                        "--timeout", timeout, *args, plugin=SOCKET_PLUGIN,
                        env={"SOCKET_PLUGIN_FAULT": fault})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return done.stderr, time.monotonic() - begin

    def test_the_plugin_works_without_a_fault(self):
        for abi in (8, 10, 12):
            report = net_perf_json("--test", "group", "--sizes", "8,4k", "--iters", 64,
                                   "--repeats", 2, "--abi", abi, plugin=SOCKET_PLUGIN)
            self.assertEqual([r["wrong"] for r in report["results"]], [0, 0])

    def test_one_wrong_byte_is_found(self):
        text, _ = self.run_with("corrupt")
        self.assertIn("wrong data", text)
        self.assertIn("message 19 of connection 0 differs from byte 2044 of 4088", text)

    def test_a_wrong_size_is_found(self):
        text, _ = self.run_with("short")
        self.assertIn("is reported with 4088 bytes instead of 4096", text)

    def test_nothing_is_checked_when_told_so(self):
        done = net_perf("--test", "bw", "--sizes", "4k", "--iters", 300, "--no-verify",
                        plugin=SOCKET_PLUGIN, env={"SOCKET_PLUGIN_FAULT": "corrupt"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_stuck_transfer_ends_at_the_deadline_with_its_phase(self):
        text, seconds = self.run_with("hang", timeout=2)
        self.assertIn("timed out after 2.0 s in phase 'bw 4k: warm up': received", text)
        self.assertIn("raise --timeout", text)
        self.assertLess(seconds, 8)

    def test_a_plugin_that_blocks_is_stopped(self):
        for mode in ((), ("--threads", 2)):
            text, seconds = self.run_with("block", *mode, timeout=2)
            self.assertIn("timed out", text)
            self.assertIn("raise --timeout", text)
            self.assertIn("was stopped in phase 'bw 4k: warm up'", text)
            self.assertLess(seconds, 8)

    def test_a_killed_worker_is_named(self):
        text, _ = self.run_with("die")
        self.assertIn("worker 1: was killed by signal Killed", text)

    def test_an_error_of_the_plugin_is_translated(self):
        text, _ = self.run_with("error")
        self.assertIn("test of a receive on sock0 failed in phase 'bw 4k: warm up': remote error",
                      text)

    def test_init_failure_and_no_device(self):
        text, _ = self.run_with("init")
        self.assertIn("ncclNetPlugin_v12.init failed with system error", text)
        text, _ = self.run_with("none")
        self.assertIn("no device: the plugin does not say why", text)


if __name__ == "__main__":
    unittest.main()
