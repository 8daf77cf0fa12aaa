"""instructions.sh: the plugin's own instructions, without the software HCA's."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from tool import NET_PERF, PLUGIN, SOCKET_PLUGIN, SOURCE_ROOT, clean_environment

SCRIPT = pathlib.Path(SOURCE_ROOT, "tools", "net_perf", "instructions.sh")
BUILD = os.environ["BUILD_ROOT"]


def instructions(*args, plugin=PLUGIN, env=None):
    return subprocess.run(["sh", SCRIPT, "--net-perf", NET_PERF, "--plugin", plugin, "--messages",
                           "400", *args], env={**clean_environment(), **(env or {})},
                          capture_output=True, text=True, timeout=250)


def figures(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(n) for n in re.findall(r"^([\d.]+) (?:instructions|of them|in libc)", done.stdout,
                                         re.MULTILINE)]


@unittest.skipUnless(shutil.which("valgrind"), "valgrind is not installed")
class Counts(unittest.TestCase):
    def test_the_fabric_is_not_counted_as_the_plugin(self):
        everything, own, libc = figures(instructions("--softhca", BUILD, "--loop", "one"))
        self.assertLess(own + libc, everything)
        opened = figures(instructions("--loop", "one", env={"TWINPATH_FABRIC": "soft"}))
        self.assertLess(opened[1] + opened[2], opened[0])
        self.assertLess(opened[1], 1.3 * own)

    def test_a_group_costs_less_a_message_than_one_by_one(self):
        one = figures(instructions("--softhca", BUILD, "--loop", "one", "--size", "64"))
        group = figures(instructions("--softhca", BUILD, "--loop", "group", "--size", "64"))
        self.assertLess(group[1], one[1])

    def test_functions_of_any_plugin(self):
        done = instructions("--top", "5", "--loop", "poll", plugin=SOCKET_PLUGIN)
        own = figures(done)[1]
        costs = [float(n) for n in re.findall(r"^ +([\d.]+)  \S", done.stdout, re.MULTILINE)]
        self.assertEqual(len(costs), 5, done.stdout)
        self.assertEqual(costs, sorted(costs, reverse=True))
        self.assertLessEqual(sum(costs), own + 1)
        self.assertIn("calls a message: irecv ", done.stdout)


class Refuses(unittest.TestCase):
    def test_arguments_it_does_not_know(self):
        done = instructions("--frobnicate")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--frobnicate", done.stderr)
        self.assertEqual(instructions("--top").returncode, 2)


if __name__ == "__main__":
    unittest.main()
