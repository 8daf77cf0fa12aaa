"""tools/nccl_matrix.py with stand-ins for NCCL, coll_perf and nccl-tests: which cells there are,
what makes one pass or fail, and what the table says."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

MATRIX = pathlib.Path(os.environ["SOURCE_ROOT"], "tools", "nccl_matrix.py")
PLUGIN = os.environ["PLUGIN"]
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("TWINPATH_", "NCCL_", "FAKE_NCCL_VERSION"))}

# Writes down how it was called; then does what the file "behave" beside it says.
FAKE_COLL_PERF = """\
import ctypes, json, os, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).resolve().parent
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
seen = {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "TWINPATH_"))}
plugin = seen["NCCL_NET_PLUGIN"]
if "/" not in plugin:
    seen["found"] = any(os.path.exists(f"{p}/libnccl-net-{plugin}.so")
                        for p in os.environ["LD_LIBRARY_PATH"].split(":"))
with open(here / "calls", "a") as out:
    out.write(json.dumps([sys.argv[1:], seen]) + "\\n")
number = ctypes.c_int()
ctypes.CDLL(option("--nccl")).ncclGetVersion(ctypes.byref(number))
number = number.value
behave = (here / "behave").read_text()
if behave == "hang":
    child = subprocess.Popen(["sleep", "1000"])
    (here / "child").write_text(str(child.pid))
    time.sleep(1000)
if behave == "crash":
    sys.exit("rank 1: unhandled system error")
if behave == "other":
    number = 22107
wrong = 3 if behave == "wrong" else 0
rows = [{"what": what, "type": option("-d"), "bytes": 8,
         "out_of_place": {"wrong": wrong if what == "alltoall" else 0},
         "in_place": None if what == "sendrecv" else {"wrong": 0}}
        for what in option("-c").split(",")]
if behave == "nothing":
    rows = []
text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
print(json.dumps({"notes": ["coll_perf 0.1.0, NCCL " + text + " from here"], "results": rows}))
sys.exit(1 if wrong else 0)
"""

FAKE_NCCL_TEST = """\
#!/bin/sh
echo "$0 $*" >> "$(dirname "$0")/calls"
case "$(cat "$(dirname "$0")/behave")" in
  no-gin) case "$*" in *-D*) echo "Test NCCL failure: GIN not supported"; exit 3 ;; esac ;;
  wrong) wrong=5 ;;
esac
echo "NCCL version 2.28.9+cuda13.0"
echo "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
echo "           8             2     float     sum      -1    11.36    0.00    0.00       0    11.11    0.00    0.00       0"
echo "          64            16     float     sum      -1    11.36    0.00    0.00       ${wrong:-0}    11.11    0.00    0.00     N/A"
[ -z "$wrong" ] && echo "# Out of bounds values : 0 OK" || echo "# Out of bounds values : $wrong FAILED"
"""


class Matrix(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        # Both ways that a folder may look.
        for name, place, library in (("old", "lib", "FAKE_NCCL_OLD"),
                                     ("new", "nvidia/nccl/lib", "FAKE_NCCL")):
            (self.folder / "nccl" / name / place).mkdir(parents=True)
            shutil.copy(os.environ[library], self.folder / "nccl" / name / place / "libnccl.so.2")
        self.coll_perf = self.folder / "coll_perf"
        self.coll_perf.write_text(f"#!{sys.executable}\n" + FAKE_COLL_PERF)
        self.coll_perf.chmod(0o755)
        self.results = self.folder / "results.jsonl"
        self.behave("well")

    def behave(self, how, folder=""):
        (self.folder / folder / "behave").write_text(how)

    def build_nccl_tests(self, behave="well"):
        folder = self.folder / "tests"
        folder.mkdir(exist_ok=True)
        for name in ("all_reduce_perf", "alltoall_perf"):
            (folder / name).write_text(FAKE_NCCL_TEST)
            (folder / name).chmod(0o755)
        self.behave(behave, "tests")
        return folder

    def run_matrix(self, *more, status=0, versions="", **env):
        done = subprocess.run(
            [sys.executable, str(MATRIX), "--nccl", str(self.folder / "nccl" / versions),
             "--coll-perf", str(self.coll_perf), "--plugin", PLUGIN, "--gpus", "2", "--results",
             str(self.results), *map(str, more)],
            env={**CLEAN, **env}, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def lines(self):
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def test_a_matrix_of_versions_types_and_layouts(self):
        readme = self.folder / "README.md"
        readme.write_text("before\n<!-- nccl:begin -->\nold\n<!-- nccl:end -->\nafter\n"
                          "<!-- report:begin -->\nanother\n<!-- report:end -->\n")
        self.run_matrix("--update", readme, "--json", self.folder / "all.json")
        text = readme.read_text()
        self.assertIn("| program | 2.20.5, 2.28.9 |", text)  # both did the same
        for kind in ("float", "bf16"):
            for layout in ("processes", "threads"):
                # Five collectives out of and in place, one only out of place.
                self.assertIn(f"| coll_perf, 6 collectives, {kind}, {layout} | pass 11 |", text)
        self.assertTrue(text.startswith("before\n<!-- nccl:begin -->\n"))
        self.assertIn("<!-- nccl:end -->\nafter\n<!-- report:begin -->\nanother\n", text)
        self.assertNotIn("old\n", text)
        self.assertEqual(len(self.calls()), 8)
        self.assertEqual(len(json.loads((self.folder / "all.json").read_text())["cells"]), 8)

    def test_the_plugin_is_the_only_way(self):
        self.run_matrix("--types", "float", "--layouts", "threads", NCCL_P2P_DISABLE="0")
        for arguments, seen in self.calls():
            self.assertEqual(seen["NCCL_NET"], "Twinpath")
            self.assertEqual(seen["TWINPATH_FABRIC"], "soft")
            self.assertEqual(seen["NCCL_SHM_DISABLE"], "1")
            self.assertEqual(seen["NCCL_P2P_DISABLE"], "0")  # the user's word
            if "/old/" in arguments[arguments.index("--nccl") + 1]:
                self.assertTrue(seen["found"])  # 2.20 takes no path
            else:
                self.assertEqual(seen["NCCL_NET_PLUGIN"], str(pathlib.Path(PLUGIN).resolve()))

    def test_what_fails_a_cell(self):
        one = ("--types", "float", "--layouts", "threads")
        for behave, detail, count in (("wrong", "alltoall float 8 B: 3 wrong", "**FAIL** 1 of 11"),
                                      ("crash", "rank 1: unhandled system error", "**FAIL** 1 of 1"),
                                      ("other", "run by NCCL 2.21.7", "**FAIL** 1 of 1"),
                                      ("nothing", "nothing was checked", "**FAIL** 1 of 1")):
            with self.subTest(behave):
                self.results.unlink(missing_ok=True)
                self.behave(behave)
                out = self.run_matrix(*one, versions="new", status=1)
                self.assertIn(detail, self.lines()[-1]["detail"])
                self.assertIn(count, out)

    def test_a_hanging_program_is_killed_with_its_children(self):
        self.behave("hang")
        self.run_matrix("--types", "float", "--layouts", "threads", "--limit", "5",
                        versions="new", status=1)
        self.assertIn("not finished after 5 s", self.lines()[-1]["detail"])
        child = int((self.folder / "child").read_text())
        for _ in range(100):
            try:
                os.kill(child, 0)
                # A zombie waits for init.
                if pathlib.Path(f"/proc/{child}/stat").read_text().split(") ")[1][0] == "Z":
                    return
            except (ProcessLookupError, FileNotFoundError):
                return
            time.sleep(0.1)
        self.fail("the child lives on")

    def test_nccl_tests_and_cells_that_were_not_run(self):
        tests = self.build_nccl_tests()
        out = self.run_matrix("--types", "bf16", "--nccl-tests", f"2.28.9={tests}")
        self.assertIn("| nccl-tests all_reduce_perf, bf16, one process |  | pass 3 |", out)
        self.assertIn("| nccl-tests alltoall_perf -D 3 (GIN), one process |  | pass 3 |", out)
        self.assertNotIn("sendrecv_perf", out)  # was not built
        self.assertNotIn("processes |  |", out)  # no --mpirun
        calls = (tests / "calls").read_text()
        self.assertIn("all_reduce_perf -g 2 -b 8 -e 64m -f 8 -d bfloat16\n", calls)
        self.assertIn("-R 2 -D 4\n", calls)

        self.behave("no-gin", "tests")
        out = self.run_matrix("--types", "bf16", "--nccl-tests", f"2.28.9={tests}", status=1)
        self.assertIn("GIN not supported", out)
        self.assertIn("-D 3 (GIN), one process |  | **FAIL** 1 of 1 |", out)
        self.behave("wrong", "tests")
        out = self.run_matrix("--types", "bf16", "--nccl-tests", f"2.28.9={tests}", status=1)
        self.assertIn("all_reduce_perf, bf16, one process |  | **FAIL** 1 of 3 |", out)

    def test_nccl_tests_of_no_version_run_with_all_but_without_gin(self):
        out = self.run_matrix("--types", "float", "--nccl-tests", self.build_nccl_tests(), status=1)
        self.assertNotIn("GIN", out)
        # The stand-in says that 2.28.9 ran, whatever library it got.
        self.assertIn("all_reduce_perf, float, one process | **FAIL** 1 of 1 | pass 3 |", out)
        self.assertIn("2.20.5: failed: it was run by NCCL 2.28.9", out)

    def test_resumed_and_shown_again(self):
        self.behave("wrong")
        self.run_matrix("--types", "float", status=1)
        self.behave("well")
        self.run_matrix("--types", "float", "--layouts", "threads", "--resume")
        self.assertEqual(len(self.calls()), 6)
        self.run_matrix("--types", "float", "--resume")
        self.assertEqual(len(self.calls()), 8)
        self.run_matrix("--types", "float", "--resume")
        self.assertEqual(len(self.calls()), 8)
        done = subprocess.run([sys.executable, str(MATRIX), "--results", str(self.results)],
                              env=CLEAN, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| coll_perf, 6 collectives, float, threads | pass 11 |",
                      done.stdout)

    def test_what_is_no_nccl_is_refused_or_left_out(self):
        def fails(*arguments, says):
            done = subprocess.run([sys.executable, str(MATRIX), "--plugin", PLUGIN,
                                   *map(str, arguments)], env=CLEAN, capture_output=True, text=True,
                                  timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)
        empty = self.folder / "empty"
        empty.mkdir()
        fails("--nccl", empty, says="no libnccl.so.2")
        (empty / "libnccl.so.2").write_text("no library")
        fails("--nccl", empty, says="does not tell its version")
        fails(says="--nccl FOLDER")
        fails("--nccl", empty, "--layouts", "mpi", says="mpi is unknown")


if __name__ == "__main__":
    unittest.main()
