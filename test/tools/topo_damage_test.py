"""twinpath-topo on damaged machine files: an answer or one line with option, file and cause, never a
signal.  240 damages in all; TWINPATH_LONG=1: of each file."""
import glob
import os
import random
import subprocess
import sys
import tempfile
import unittest

SOURCE_ROOT = os.environ["SOURCE_ROOT"]
TOPO = os.environ["TWINPATH_TOPO"]
OWN = os.path.join(SOURCE_ROOT, "test", "golden", "topology")
SHARED = os.environ.get("TWINPATH_TOPOLOGY_DATA",
                        os.path.join(os.path.dirname(SOURCE_ROOT), "shared", "topology"))
DAMAGES = 240
COMMANDS = ([], ["check"], ["tree"], ["--json"], ["check", "--json"], ["why", "GPU0", "mlx5_0"])


def damaged(text, seed):
    at = seed.randrange(len(text))
    kind = seed.randrange(4)
    if kind == 0:
        return text[:at] + bytes([seed.randrange(256)]) + text[at + 1:]
    if kind == 1:
        return text[:at] + text[at + 1 + seed.randrange(40):]
    if kind == 2:
        return text[:at] + text[at:at + 40] + text[at:]
    equals = text.find(b'="', at)
    return text[:equals - 1] + b"x" + text[equals:]


class Damage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "damaged.xml")

    def attempt(self, text, args, label):
        with open(self.path, "wb") as out:
            out.write(text)
        done = subprocess.run([TOPO, "--input", self.path, *args], capture_output=True, timeout=60)
        self.assertIn(done.returncode, (0, 1, 2, 3), f"{label}: {done.stderr!r}")
        if done.returncode == 3 and b"does not exist; " not in done.stderr:
            self.assertEqual(done.stderr.count(b"\n"), 1, f"{label}: {done.stderr!r}")
            self.assertIn(b"twinpath-topo: --input " + self.path.encode() + b": ", done.stderr, label)
        return done.returncode

    def test_random_damage(self):
        files = sorted(glob.glob(OWN + "/*.xml") + glob.glob(SHARED + "/hwloc/*.xml") +
                       glob.glob(SHARED + "/nccl/*.xml"))
        self.assertGreaterEqual(len(files), 10)
        each = DAMAGES if os.environ.get("TWINPATH_LONG") else -(-DAMAGES // len(files))
        seed = random.Random(20240607)
        codes = []
        for path in files:
            with open(path, "rb") as f:
                whole = f.read()
            for i in range(each):
                label = f"{os.path.basename(path)}, damage {i}"
                codes.append(self.attempt(damaged(whole, seed), COMMANDS[i % len(COMMANDS)], label))
        self.assertGreaterEqual(len(codes), DAMAGES)
        self.assertIn(0, codes)
        self.assertIn(3, codes)

    def test_the_byte_that_ended_the_process(self):
        for path in glob.glob(OWN + "/*.hwloc.xml"):
            with open(path, "rb") as f:
                whole = f.read()
            at = whole.index(b'complete_cpuset', whole.index(b'"PU"'))
            text = whole[:at] + b"complexe_cpuset" + whole[at + 15:]
            # Nothing depends on that set.
            self.assertEqual(self.attempt(text, [], path), 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
