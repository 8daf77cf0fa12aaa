"""twinpath-topo check on several hosts: processes of one machine over the software adapter, started
by hand, by a launcher's variables, and by a stand-in for ssh."""
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import unittest

from documents import documented, paths_of
from tool import NO_JOB, PLUGIN, clean_environment

TOPO = os.environ["TWINPATH_TOPO"]
SOFT = {"TWINPATH_FABRIC": "soft", "TWINPATH_SOFT_HCAS": "2", "NCCL_NET_PLUGIN": PLUGIN}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_listener(port):
    for _ in range(600):
        with open("/proc/net/tcp", encoding="ascii") as f:
            if any(f":{port:04X} 00000000:0000 0A" in line for line in f):
                return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on {port}")


class Job:
    """A rank for each of `hosts`: the environment that it has of its own."""

    def __init__(self, *hosts, args=(), late=None):
        port = free_port()
        self.ranks = []
        for rank, own in enumerate(hosts):
            if rank > 0 and late:
                wait_for_listener(port)
                time.sleep(late)
            self.ranks.append(subprocess.Popen(
                [TOPO, "--no-cuda", "--no-hwloc", "check", "--json", "--rendezvous", f"127.0.0.1:{port}",
                 "--rank", f"{rank}/{len(hosts)}", *args],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**clean_environment(), **NO_JOB, **SOFT, **own}))

    def end(self):
        texts = [r.communicate(timeout=120) for r in self.ranks]
        for out, err in texts[1:]:
            assert (out, err) == ("", ""), (out, err)  # rank 0 alone prints
        return json.loads(texts[0][0])


def between(document, level):
    return [c for c in document["checks"]
            if c["group"] == "rails between hosts" and c["level"] == level]


class Hosts(unittest.TestCase):
    def test_three_that_reach_each_other(self):
        report = Job({}, {}, {}, args=("--patience", "60")).end()
        self.assertEqual(len(report["pairs"]), 3 * 4)
        for pair in report["pairs"]:
            self.assertIsNone(pair["failed"], pair)
            self.assertGreater(pair["us"], 0)
        self.assertEqual(between(report, "FAIL"), [])
        self.assertEqual(len(between(report, "OK")), 3)
        self.assertEqual(set(paths_of(report)) - documented()["twinpath-topo-check/2"], set())
        self.assertEqual(len({p["host"] for p in report["pairs"]}
                             | {p["peer"] for p in report["pairs"]}), 3)

    def test_a_rail_that_fails_is_named(self):
        # A port goes down after the plugin has been opened, for rank 0 listens behind that, and
        # before another host comes: its device is listed then, and nothing passes.
        down = {"TWINPATH_SOFT_FAULTS": "down_device=2,down_at_ms=1000"}
        report = Job(down, {}, late=1.5, args=("--patience", "5")).end()
        broken = [p for p in report["pairs"] if p["failed"]]
        self.assertEqual({p["rail"] for p in broken}, {"soft1"})
        self.assertEqual(len(broken), 2)
        self.assertEqual([p["rail"] for p in report["pairs"] if not p["failed"]], ["soft0"] * 2)
        [found] = between(report, "FAIL")
        self.assertIn(" soft1 (", found["objects"][0])
        self.assertTrue(found["remedy"])
        self.assertEqual(report["exit"], 2)

    def test_a_transfer_that_fails_ends_no_other(self):
        # Late enough that the others are still under way: in a communicator they would all end.
        fault = {"TWINPATH_SOFT_FAULTS": "fail_send=1,delay_us=200000"}
        for hosts in (fault, {}), ({}, fault):
            with self.subTest(fault_in=hosts.index(fault)):
                pairs = Job(*hosts, args=("--patience", "30")).end()["pairs"]
                self.assertEqual(len([p for p in pairs if p["failed"]]), 1, pairs)

    def test_pairs_that_cannot_work_are_named_one_by_one(self):
        unlike = {"TWINPATH_SOFT_HCAS": "soft0,soft1,link=ib"}
        report = Job(unlike, unlike, args=("--patience", "5")).end()
        broken = [(p["rail"], p["peer_rail"]) for p in report["pairs"] if p["failed"]]
        self.assertEqual(broken, [("soft0", "soft1"), ("soft1", "soft0")])
        objects = [re.findall(r" (soft\d) \(", o)
                   for c in between(report, "FAIL") for o in c["objects"]]
        self.assertEqual([tuple(o) for o in objects], broken)

    def test_what_differs_is_found(self):
        slow = {"TWINPATH_SOFT_HCAS": "soft0,soft1,speed=25,mtu=1024", "NCCL_IB_TIMEOUT": "22"}
        report = Job({}, slow).end()
        found = {(c["check"], *c["objects"]): c["fact"] for c in report["checks"]
                 if c["group"] == "all hosts" and c["level"] == "WARN"}
        for check, word in ((("speed", "rail 1"), ": 25"), (("packets", "rail 1"), ": 1024"),
                            (("settings", "NCCL_IB_TIMEOUT"), "'22'")):
            self.assertIn(word, found[check])

    def test_a_host_without_adapters_is_told(self):
        report = Job({}, {"TWINPATH_FABRIC": "verbs", "NCCL_IB_HCA": "=none"}).end()
        self.assertEqual(report["pairs"], [])
        self.assertEqual(between(report, "FAIL")[0]["fact"], "no pair of rails to try")


class Ssh(unittest.TestCase):
    def run_hosts(self, hosts, script, *args):
        with tempfile.TemporaryDirectory() as folder:
            ssh = os.path.join(folder, "ssh")
            with open(ssh, "w", encoding="utf-8") as out:
                out.write("#!/bin/sh\n" + script)
            os.chmod(ssh, 0o755)
            return subprocess.run(
                [TOPO, "--no-cuda", "--no-hwloc", "check", "--hosts", hosts, "--ssh", ssh + " -q",
                 *args], capture_output=True, text=True, timeout=120,
                env={**clean_environment(), **NO_JOB, **SOFT})

    def test_each_host_runs_it_with_the_settings_of_here(self):
        done = self.run_hosts("127.0.0.1,localhost", 'shift 2; exec env -i sh -c "$*"\n', "--json")
        report = json.loads(done.stdout)
        self.assertEqual([p["failed"] for p in report["pairs"]], [None] * 4)
        self.assertEqual(done.returncode, report["exit"])

    def test_a_host_that_is_not_reached_ends_it(self):
        done = self.run_hosts("127.0.0.1,far",
                              '[ "$2" != far ] || exit 255; shift 2; exec sh -c "$*"\n')
        self.assertEqual(done.returncode, 3)
        self.assertIn("host far: ended with status 255", done.stderr)

    def test_wrong_use(self):
        for words in (["--hosts", "a"], ["--hosts", "a,-oX"], ["--rank", "2/2"],
                      ["--hosts", "a,b", "--ssh", "/nowhere/ssh"], ["--rank", "0/2"]):
            done = subprocess.run([TOPO, "check", *words], capture_output=True, text=True,
                                  timeout=60, env={**clean_environment(), **NO_JOB})
            self.assertEqual(done.returncode, 3, words)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
