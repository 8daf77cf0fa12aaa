"""tools/bringup.sh on the software HCA: both ends on this host, a shell in the place of ssh."""
import json
import os
import pathlib
import socket
import subprocess
import tarfile
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["SOURCE_ROOT"])
BUILD = pathlib.Path(os.environ["BUILD_ROOT"])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bringup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="bringup-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bin").mkdir()
        self.stand_in("remote", 'shift; exec bash -c "$1"')
        self.stand_in("nvidia-smi", "exit 9")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TWINPATH_", "NCCL_"))}
        self.env = {**clean, "PATH": f"{self.root}/bin:{clean['PATH']}", "TWINPATH_FABRIC": "soft",
                    "TWINPATH_SOFT_JOB": self.root.name}

    def stand_in(self, name, text):
        program = self.root / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)

    def run_script(self, *args, **env):
        done = subprocess.run([SOURCE / "tools/bringup.sh", "--quick", "--build", BUILD, "--out", self.root / "out",
                               "--address", "127.0.0.1", "--port", str(free_port()), *args],
                              env={**self.env, **env}, text=True, timeout=200, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        summary = self.root / "out/summary.json"
        steps = json.loads(summary.read_text())["steps"] if summary.exists() else []
        return done, [(s["step"], s["result"]) for s in steps]

    def test_all_that_two_ends_without_gpus_can_do(self):
        done, steps = self.run_script("--peer", "there", "--remote", "remote")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(steps, [("1", "not run"), ("2", "ok"), ("3", "ok"), ("4", "ok"), *4 * [("5", "ok")],
                                 ("6", "ok"), *((n, "not run") for n in ("7", "8", "9", "10")),
                                 *2 * [("10a", "ok")]], done.stdout)
        self.assertRegex(done.stdout, r"not run +step 8 .*: no GPU")
        with tarfile.open(f"{self.root}/out.tar") as packed:
            names = {pathlib.PurePath(n).name for n in packed.getnames()}
        self.assertLessEqual({"host.txt", "host-peer.txt", "step-5.txt", "step-5-peer.txt", "node.tar",
                              "twinpath-info.json", "summary.json"}, names)
        # What the plugin said, at both ends; and the command, to be given again.
        for name in ("step-5.txt", "step-5-peer.txt"):
            text = (self.root / "out" / name).read_text()
            self.assertIn("soft0", text)
            self.assertRegex(text, r"\$ .*net_perf.* --rank [01]/2 ")

    def test_one_host_alone(self):
        done, steps = self.run_script("--steps", "2,4,5")
        self.assertEqual((done.returncode, steps), (0, [("2", "ok"), ("4", "ok"), ("5", "not run")]), done.stdout)
        self.assertIn(": no --peer", done.stdout)

    def test_it_stops_where_a_step_fails_and_says_why(self):
        done, steps = self.run_script(NCCL_IB_HCA="=mlx5_7")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(steps[1], ("2", "FAILED"), done.stdout)
        self.assertEqual({r for _, r in steps[2:]}, {"not run"}, done.stdout)
        self.assertIn("mlx5_7", done.stdout)
        self.assertIn("step 2 failed", done.stdout)
        _, steps = self.run_script("--keep-going", "--steps", "2,3,4", NCCL_IB_HCA="=mlx5_7")
        self.assertEqual(steps, [("2", "FAILED"), ("3", "ok"), ("4", "FAILED")])

    def test_a_peer_that_fails_alone_is_a_failure(self):
        self.stand_in("remote", 'shift; case $1 in *net_perf*) exit 5 ;; esac; exec bash -c "$1"')
        done, steps = self.run_script("--peer", "there", "--remote", "remote", "--steps", "10a")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(steps[0], ("10a", "FAILED"), done.stdout)

    def test_what_is_wrong_is_named(self):
        for args, said in ((("--steps", "2,99"), "no step 99"), (("--port", "x"), "--port x"),
                           (("--build", "/nowhere"), "/nowhere"), (("--frob",), "unknown option --frob"),
                           (("--peer",), "--peer needs a value"),
                           (("--peer", "there", "--remote", "false"), "cannot run a command at there")):
            done, _ = self.run_script(*args)
            self.assertEqual(done.returncode, 2, (args, done.stdout))
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
