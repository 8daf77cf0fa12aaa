"""tools/bringup.sh on the software HCA: both ends on this host, a shell in the place of ssh."""
import importlib.util
import json
import os
import pathlib
import re
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
        self.assertEqual(steps, [*((n, "not run") for n in ("0a", "0b", "0c", "1")), ("2", "ok"), ("3", "ok"), ("4", "ok"), *4 * [("5", "ok")],
                                 ("6", "ok"), *((n, "not run") for n in ("7", "8", "9", "10")),
                                 *2 * [("10a", "ok")],
                                 *((f"13{n}", "not run") for n in "abcdefgh")], done.stdout)
        self.assertRegex(done.stdout, r"not run +step 8 .*: no GPU")
        with tarfile.open(f"{self.root}/out.tar") as packed:
            names = {pathlib.PurePath(n).name for n in packed.getnames()}
        self.assertLessEqual({"host.txt", "host-peer.txt", "counters-before-peer.txt", "counters-after.txt",
                              "dmesg.txt", "dmesg-peer.txt", "step-5.txt", "step-5-peer.txt", "node.tar",
                              "twinpath-info.json", "summary.json"}, names)
        # What the plugin said, at both ends; and the command, to be given again.
        for name in ("step-5.txt", "step-5-peer.txt"):
            text = (self.root / "out" / name).read_text()
            self.assertIn("soft0", text)
            self.assertRegex(text, r"\$ .*net_perf.* --rank [01]/2 ")
        # With what the step itself sets.
        for name in ("step-10a.txt", "step-10a-peer.txt"):
            said = re.findall(r"^\$ .*NCCL_IB_ECE_ENABLE=([01]) .*net_perf", (self.root / "out" / name).read_text(), re.M)
            self.assertEqual(said, ["0", "1"], name)

    def test_one_host_alone(self):
        done, steps = self.run_script("--steps", "2,4,5")
        self.assertEqual((done.returncode, steps), (0, [("2", "ok"), ("4", "ok"), ("5", "not run")]), done.stdout)
        self.assertIn(": no --peer", done.stdout)

    def test_a_step_that_fails_ends_no_other_unless_told_to(self):
        done, steps = self.run_script("--steps", "2,3,4", NCCL_IB_HCA="=mlx5_7")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(steps, [("2", "FAILED"), ("3", "ok"), ("4", "FAILED")], done.stdout)
        self.assertIn("mlx5_7", done.stdout)
        done, steps = self.run_script("--stop", NCCL_IB_HCA="=mlx5_7")
        self.assertEqual(steps[4], ("2", "FAILED"), done.stdout)
        self.assertEqual({r for _, r in steps[5:]}, {"not run"}, done.stdout)
        self.assertIn("step 2 failed", done.stdout)

    def test_each_step_with_gpus_has_nccls_own_before_it_and_a_control_is_not_ours(self):
        self.stand_in("nvidia-smi", 'echo "GPU 0: stand-in"')
        build = self.root / "build"
        for folder, name in (("info", "twinpath-info"), ("topo", "twinpath-topo"), ("net_perf", "net_perf"),
                             ("coll_perf", "coll_perf"), ("gda_perf", "gda_perf")):
            (build / "tools" / folder).mkdir(parents=True)
            self.stand_in(name, 'echo "$NCCL_GIN_GDAKI_NIC_HANDLER $NCCL_NET $*"\n'
                          'case "$NCCL_NET $*" in IB* | *none*) exit 1 ;; esac')
            (build / "tools" / folder / name).symlink_to(self.root / "bin" / name)
        real = {"TWINPATH_FABRIC": "verbs"}
        done, steps = self.run_script("--build", build, "--peer", "there", "--remote", "remote", "--steps", "9", **real)
        self.assertEqual((done.returncode, steps), (0, [("9", "FAILED"), ("9", "ok")]), done.stdout)
        for end in "", "-peer":
            said = (self.root / f"out/step-9{end}.txt").read_text()
            self.assertRegex(said, r"(?s)\n IB --gpus 0 .*\n  --gpus 0 .*--via-plugin")
        done, steps = self.run_script("--build", build, "--steps", "13a,13b,13d,13g", **real)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(steps, [(s, r) for s in ("13a", "13b", "13d") for r in ("FAILED", "ok")]
                         + [("13g", "not run")], done.stdout)
        said = (self.root / "out/step-13b.txt").read_text()
        self.assertRegex(said, r"(?s)\n2  --plugin none -g 1 .*\n2  -g 1 ")
        # NCCL itself knows no software adapter.
        done, steps = self.run_script("--build", build, "--peer", "there", "--remote", "remote", "--steps", "9,13b")
        self.assertEqual((done.returncode, steps), (0, [(s, r) for s in ("9", "13b") for r in ("not run", "ok")]),
                         done.stdout)
        self.assertRegex(done.stdout, r"not run +step 13b +control: .*: TWINPATH_FABRIC=soft\n")

    def test_a_peer_that_fails_alone_is_a_failure(self):
        self.stand_in("remote", 'shift; case $1 in *net_perf*) exit 5 ;; esac; exec bash -c "$1"')
        done, steps = self.run_script("--peer", "there", "--remote", "remote", "--steps", "10a")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(steps[0], ("10a", "FAILED"), done.stdout)

    def test_what_is_wrong_is_named(self):
        for args, said in ((("--steps", "2,99"), "no step 99"), (("--port", "x"), "--port x"),
                           (("--build", "/nowhere"), "/nowhere"), (("--frob",), "unknown option --frob"),
                           (("--peer",), "--peer needs a value"),
                           (("--read", "/nowhere.tar"), "bringup.sh: --read /nowhere.tar: No such file or directory"),
                           (("--peer", "there", "--remote", "false"), "cannot run a command at there")):
            done, _ = self.run_script(*args)
            self.assertEqual(done.returncode, 2, (args, done.stdout))
            self.assertIn(said, done.stdout)


class Rules(unittest.TestCase):
    """An archive of the device model contradicts none of its rules, and a doctored one each by name."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="bringup-")
        cls.addClassCleanup(cls.folder.cleanup)
        out = pathlib.Path(cls.folder.name, "out")
        shown = subprocess.run([SOURCE / "tools/softhca/run", "--build", BUILD, "--mlx5", "--hcas", "1", "--job",
                                out.parent.name, "--print"], text=True, stdout=subprocess.PIPE, check=True).stdout
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TWINPATH_", "NCCL_"))}
        # As on an adapter: libibverbs and libmlx5 by their loader.
        cls.done = subprocess.run(["bash", "-c", shown + 'exec "$@"', "-", SOURCE / "tools/bringup.sh", "--quick",
                                   "--build", BUILD, "--out", out, "--steps", "0a,0b,0c,2"], text=True, timeout=250,
                                  env={**clean, "TWINPATH_FABRIC": "verbs"}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        cls.archive = f"{out}.tar"

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout)
        spec = importlib.util.spec_from_file_location("read", SOURCE / "tools/bringup/read.py")
        self.read = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.read)

    def verdicts(self, archive):
        return {name: (verdict, text) for name, verdict, text in self.read.judge(archive)}

    def test_the_model_keeps_its_rules(self):
        done = subprocess.run([SOURCE / "tools/bringup.sh", "--read", self.archive], text=True,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout)
        # libibverbs's own queue pair is not modelled.
        self.assertEqual([line.split()[:3] for line in done.stdout.splitlines() if line.startswith("not seen")],
                         [["not", "seen", "ours.ts_format"]])
        self.assertRegex(done.stdout, r"rules of the model hold, 0 are contradicted, of 1 nothing was seen")
        for step in "0a", "0b", "0c", "2":
            self.assertRegex(done.stdout, rf"ok +step {step} .*: \d+ s\n")

    def doctor(self, archive, source, where, relation, value):
        """The archive as of an adapter for which that rule does not hold."""
        kind, *page = source.split()

        def other(answer):
            byte, high, low = (int(x, 0) for x in re.split("[:-]", where))
            at = self.read.HEADERS[kind] + byte
            word = int.from_bytes(answer[at:at + 4], "big") & ~((1 << high - low + 1) - 1 << low)
            odd = int(value) ^ 1 if relation == "=" else int(value) - 1
            return (answer[:at] + (word | odd << low).to_bytes(4, "big") + answer[at + 4:]).hex()

        for d in archive.devices:
            if kind == "capabilities":
                d["capabilities"][page[0]]["out"] = other(bytes.fromhex(d["capabilities"][page[0]]["out"]))
            elif kind == "registrations":
                d["registrations"][where] = "EPERM"
            elif kind == "beside":
                d["queue_pair"] = {"result": 0, "out": bytes(500).hex()}
        for c in archive.commands:
            opcode = int(c["in"][:4], 16)
            if kind in ("ours", "beside") and opcode == 0x50b:
                value = "2" if kind == "beside" else value
                c["out"] = other(bytes.fromhex(c["out"]))
            elif kind == "commands" and opcode == int(where, 0):
                c["out"] = "08" + c["out"][2:]

    def test_whatever_an_adapter_does_otherwise_is_named(self):
        for name, source, where, claim, _ in self.read.rules():
            with self.subTest(name):
                archive = self.read.Archive(self.archive)
                relation, *value = claim.split()
                self.doctor(archive, source, where, "=" if source == "beside" else relation, (value or ["0"])[0])
                verdicts = self.verdicts(archive)
                self.assertEqual(verdicts[name][0], "contradicted", verdicts[name])
                # Of a field of a queue that is not ready nothing else is asked.
                others = [n for n, (v, _) in verdicts.items() if v == "contradicted" and n != name]
                self.assertEqual(others, [], verdicts)

    def test_a_doctored_archive_is_told_by_the_script(self):
        folder = pathlib.Path(self.folder.name, "doctored")
        with tarfile.open(self.archive) as tar:
            tar.extractall(folder)
        file = folder / "out/evidence.json"
        seen = json.loads(file.read_text())
        seen["devices"][0]["registrations"]["unmapped"] = "ok"
        file.write_text(json.dumps(seen))
        with tarfile.open(f"{folder}.tar", "w") as tar:
            tar.add(folder / "out", "out")
        done = subprocess.run([SOURCE / "tools/bringup.sh", "--read", f"{folder}.tar"], text=True,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"contradicted mr.unmapped +mlx5_0 says ok, the model = EFAULT: ")

    def test_what_is_no_archive_is_refused(self):
        for text in "", "x" * 2000:
            file = pathlib.Path(self.folder.name, "other")
            file.write_text(text)
            done = subprocess.run([SOURCE / "tools/bringup.sh", "--read", file], text=True, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2)
            self.assertIn("no archive of tools/bringup.sh", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
