"""tools/test.sh with stand-ins for meson and ninja: which suites it runs, how it says how far it is, and
its last line, also when it is interrupted."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["SOURCE_ROOT"])

# "meson test" writes a line for each test as it ends, and leaves a process behind that the script has
# to end.
MESON = """#!/bin/bash
echo "meson $*" >>"$CALLS"
case $1 in
  setup) for folder; do case $folder in build-*) touch "$folder/build.ninja" ;; esac; done ;;
  introspect) echo '[]' ;;
  test)
    folder=$3
    mkdir -p "$folder/meson-logs"
    log=$folder/meson-logs/testlog-all.json
    for n in 1 2 3; do
      echo '{"name": "twinpath:unit / t'$n'", "result": "OK", "stdout": "cases: 2 passed, 0 failed, 0 skipped"}' >>"$log"
    done
    [ -z "${FAILS-}" ] || echo '{"name": "twinpath:unit / bad", "result": "FAIL", "stdout": "'"$FAILS"'\\nskipped: x: y", "stderr": "'"${LOGS-}"'"}' >>"$log"
    # One that fails beside others only: by what it says, once.
    [ -z "${ONCE-}" ] || case "$*" in
      *' once') echo '{"name": "twinpath:unit / once", "result": "OK", "stdout": "cases: 1 passed, 0 failed, 0 skipped"}' >"$log" ;;
      *) echo '{"name": "twinpath:unit / once", "result": "FAIL", "stdout": "'"$ONCE"'"}' >>"$log" ;;
    esac
    if [ -n "${HANGS-}" ]; then
      echo '{"name": "twinpath:unit / cut off", "result": "INTERRUPT", "stdout": ""}' >>"$log"
      sleep 300 &
      echo $! >"$HANGS.new" && mv "$HANGS.new" "$HANGS"
      wait
    fi
    ;;
esac
"""
# What is compiled early, beside something else, takes long where that is asked for.
NINJA = """echo "ninja $*" >>"$CALLS"; case "$*" in *build-asan*) [ -z "${BUILD_HANGS-}" ] || { sleep 300 & echo $! >"$BUILD_HANGS"; wait; } ;; esac"""
OTHERS = {"ninja": NINJA, "shellcheck": 'echo "shellcheck $#" >>"$CALLS"', "nvidia-smi": "exit 1",
          "clang-format-14": "echo version 13.0.0", "dpkg-query": "echo ok installed", "apt-cache": "exit 0",
          "meson": None}


class TestSh(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="test-sh-"))
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(SOURCE / "tools/lib", self.root / "tools/lib")
        shutil.copy(SOURCE / "tools/test.sh", self.root / "tools/test.sh")
        for folder in ("plugin", "proxy", "topology", "gda", "test", ".ci", "bin"):
            (self.root / folder).mkdir()
        for name, text in OTHERS.items():
            program = self.root / "bin" / name
            program.write_text(f"#!/bin/sh\n{text}\n" if text else MESON)
            program.chmod(0o755)
        self.calls = self.root / "calls"
        self.calls.touch()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TWINPATH_", "BASH_"))}
        self.env = {**clean, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "CALLS": str(self.calls)}

    def command(self, *args):
        return ["bash", self.root / "tools/test.sh", "--no-install", *args]

    def run_script(self, *args, **env):
        self.calls.write_text("")
        return subprocess.run(self.command(*args), env={**self.env, **env}, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def meson_tests(self):
        return re.findall(r"^meson test (.*)$", self.calls.read_text(), re.M)

    def test_a_suite_of_the_plain_build(self):
        done = self.run_script("--suite", "unit,lint", "--suite", "abi")
        (line,) = self.meson_tests()
        self.assertIn("-C build-test ", line)
        self.assertEqual(re.findall(r"--suite=(\w+)", line), ["unit", "abi", "lint"])
        self.assertNotIn("--no-suite", line)
        self.assertEqual(done.stdout.splitlines()[-1], "7 passed, 0 failed", done.stdout)  # build, 3 x 2
        self.assertEqual(done.returncode, 0)
        self.assertIn("stage 1 of 1: plain", done.stdout)
        self.assertNotIn("plugin/SETTINGS.md", done.stdout)

    def test_a_stage_alone_builds_nothing_that_it_does_not_need(self):
        done = self.run_script("--suite", "scripts")
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 0 failed", done.stdout)
        calls = self.calls.read_text()
        self.assertNotIn("meson", calls)
        # The scripts that were copied: test.sh, and five that it reads.
        self.assertEqual(int(re.search(r"^shellcheck (\d+)$", calls, re.M)[1]),
                         1 + 1 + len(list((self.root / "tools/lib").glob("*.sh"))), calls)

    def test_sources_that_compile_only_one_by_one_are_a_failure_and_tested(self):
        self.program("bin/ninja", 'mkdir "$0.once" 2>/dev/null || exit 0; echo "error: redefinition of x"; exit 1')
        done = self.run_script("--suite", "unit")
        self.assertEqual(done.stdout.splitlines()[-1], "6 passed, 1 failed", done.stdout)
        self.assertIn("error: redefinition of x", done.stdout)
        self.assertEqual(re.findall(r"setup .*--unity=(\w+)", self.calls.read_text()), ["on", "off"])

    def test_builds_as_others_make_them(self):
        self.program("bin/dpkg-buildflags", "echo -hard-$2")
        for name in ("g++", "clang++"):
            self.program(f"bin/{name}", "exit 0")
        done = self.run_script("--suite", "variants")
        self.assertEqual(done.stdout.splitlines()[-1], "4 passed, 0 failed", done.stdout)
        calls = self.calls.read_text()
        for what in ("release .*--buildtype=release", "clang-lto .*--buildtype=release -Db_lto=true",
                     "plain .*--buildtype=plain", "hardened .*-Dcpp_args=-hard-CXXFLAGS -hard-CPPFLAGS "
                     "-Dcpp_link_args=-hard-LDFLAGS"):
            self.assertRegex(calls, rf"meson setup build-variants/{what}")
        self.assertEqual(calls.count("-Dwerror=true -Dtests=disabled"), 4, calls)
        self.assertEqual(len(re.findall("^ninja -C build-variants/", calls, re.M)), 4, calls)

    def program(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)

    def test_all_stages_in_their_order(self):
        self.program("test/vm/run", """echo "vm $*" >>"$CALLS"; echo 'ok: something'; echo 'FAILED: other'
                     echo 'cases: 3 passed, 1 failed, 1 skipped'; exit 1""")
        self.program("test/vm/suite", "echo 'soft 1 x'; echo 'pair 1 y'")
        self.program("test/vm/mlx5", """echo "mlx5 $*" >>"$CALLS"; echo 'cases: 1 passed, 0 failed, 0 skipped'""")
        for name in ("test/vm/rxe-run", "test/vm/siw-build", "build-test/tools/twinpath-info"):
            self.program(name, "exit 0")
        self.program("tools/demo.sh", 'echo "demo $*" >>"$CALLS"')
        for name in ("clang++", "c++"):  # no sanitizer's runtime: what is compiled does not start
            self.program(f"bin/{name}", "exit 1")
        self.program("bin/uname", "[ $1 = -m ] && echo x86_64 || echo stand-in")
        self.program("build-asan/test/fuzz/fuzz-x", "echo stat::number_of_executed_units: 9")
        done = self.run_script("--all", TWINPATH_FUZZ_SECONDS="1")
        self.assertNotIn("left out", done.stdout)
        said = re.findall(r"stage (\d) of (\d): (\w+)", done.stdout)
        names = ["plain", "demo", "softhca", "vm", "format", "scripts", "asan", "tsan", "fuzz"]
        self.assertEqual(said, [(str(i + 1), "9", n) for i, n in enumerate(names)], done.stdout)
        # build, 3 x 2, settings' table; demo; two times 3 and a failure, 1; shellcheck; build, 3 x 2; fuzz
        self.assertEqual(done.stdout.splitlines()[-1], "25 passed, 2 failed", done.stdout)
        self.assertRegex(done.stdout, r"Took .*; 2 test cases skipped")
        # Told again right before the last line.
        self.assertRegex(done.stdout, r"\nFailed:\n  FAILED: other\n  FAILED: other\n25 passed")
        self.assertEqual(done.returncode, 1)
        for line in ("  ok: something", "  FAILED: other", "not run: thread sanitizer: ", "ok: fuzz x: 9 inputs"):
            self.assertIn(line, done.stdout)
        self.assertNotIn("cases: 3", done.stdout)
        calls = self.calls.read_text()
        self.assertIn("demo --no-install --jobs ", calls)
        self.assertRegex(calls, r"vm .* soft\n(.*\n)*vm .* pair\n(.*\n)*mlx5 --build build-test\n")
        # One run of all, and one for each sanitizer that there is.
        plain, sanitized = self.meson_tests()
        self.assertEqual(re.findall(r" --suite=(\w+)", plain), [])
        self.assertEqual(re.findall(r" --no-suite=(\w+)", plain), ["perf", "softhca", "gpu"])
        self.assertEqual(re.findall(r" --suite=(\w+)", sanitized), ["unit", "soft", "fabric", "abi", "gda"])

        # Without --all what a change needs, and one line that names the rest.
        change = self.run_script()
        self.assertRegex(change.stdout, r"\] stages: plain format scripts; left out, tools/test.sh --all runs them: "
                                        r"demo softhca vm asan tsan fuzz\n")
        self.assertEqual([n for _, _, n in re.findall(r"stage (\d) of (\d): (\w+)", change.stdout)],
                         ["plain", "format", "scripts"])
        self.assertEqual(change.stdout.splitlines()[-1], "9 passed, 0 failed", change.stdout)
        self.assertRegex(self.calls.read_text(), r"ninja -C build-test")
        self.assertNotRegex(self.calls.read_text(), r"build-asan|build-tsan|demo|vm ")

        # The report is made of two of the long stages.
        self.program("test/vm/run", "echo skipped: no machine; exit 77")
        report = self.run_script("--report", "r.json")
        self.assertIn("stages: plain softhca vm format scripts; left out", report.stdout)
        self.assertIn("not run: VM suite: skipped: no machine", report.stdout)

    def test_the_ci_runs_all(self):
        self.assertRegex((SOURCE / ".ci/run").read_text(), r'tools/test\.sh" --all "\$@"\n$')

    def test_an_unknown_suite_is_refused_with_the_names_there_are(self):
        done = self.run_script("--suite", "unti")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, r"there is no suite unti\b.*\bunit\b.*\basan\b")

    def test_a_failed_test_is_counted(self):
        done = self.run_script("--suite", "unit", FAILS="the reason")
        self.assertEqual(done.stdout.splitlines()[-1], "7 passed, 1 failed", done.stdout)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout.split("\nFailed:\n")[1], r"^  plain: unit: bad \(FAIL\)\n      the reason\n7 ")

    def test_what_a_case_expected_is_told_before_what_was_logged_later(self):
        case = ["the name", "a.cc:1", "a.cc:7: FAILED:", "  CHECK( x )", "with expansion:", "  false"]
        logged = [f"warning {i}" for i in range(100)]
        done = self.run_script("--suite", "unit", FAILS="\\n".join(["before", *case]), LOGS="\\n".join(logged))
        # 16 lines, the lines of what failed first.
        self.assertEqual([line.strip() for line in done.stdout.split("\nFailed:\n")[1].splitlines()[1:-1]],
                         [*(line.strip() for line in case), *logged[:4], "...", *logged[-5:]])

    def test_what_fails_beside_others_and_passes_alone_is_told(self):
        done = self.run_script("--suite", "unit", ONCE="it came late")
        self.assertEqual(done.stdout.splitlines()[-1], "8 passed, 0 failed", done.stdout)  # build, 3 x 2, once
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"(?m)^Failed beside other tests.*\n  plain: .* once \(FAIL\)\n +it came late$")
        first, second = self.meson_tests()
        self.assertNotIn("--num-processes 1 ", first)
        self.assertRegex(second, "--num-processes 1 .*--suite=unit .*once$")

    def test_what_a_sanitizer_reports_is_a_failure_at_once(self):
        for report in ("==9==ERROR: AddressSanitizer: heap-use-after-free", "a.cc:1:2: runtime error: shift",
                       "WARNING: ThreadSanitizer: data race (pid=1)"):
            done = self.run_script("--suite", "unit", ONCE=report)
            self.assertEqual(done.stdout.splitlines()[-1], "7 passed, 1 failed", done.stdout)
            self.assertEqual(len(self.meson_tests()), 1)

    def test_the_second_run_estimates_the_rest(self):
        first = self.run_script("--suite", "plain,scripts").stdout
        self.assertIn("stage 2 of 2: scripts\n", first)
        self.assertNotIn("left, as last time", first)
        second = self.run_script("--suite", "plain,scripts").stdout
        self.assertRegex(second, r"\[\d+:\d\d\] stage 1 of 2: plain, about \d+ min left, as last time")

    def test_interrupted_it_ends_what_runs_and_counts_what_was_run(self):
        # What the programs of others do is not counted before they end.
        self.program("test/vm/run", 'sleep 300 & echo $! >"$HANGS.new" && mv "$HANGS.new" "$HANGS"; wait')
        for number, suite, passed in ((signal.SIGINT, "unit", 7), (signal.SIGTERM, "unit", 7),
                                      (signal.SIGTERM, "softhca", 1), (signal.SIGINT, "softhca,asan", 1)):
            hangs = self.root / f"hangs-{number}-{suite}"
            builds = self.root / f"builds-{number}-{suite}"
            if "asan" not in suite:
                builds.write_text("0")
            with subprocess.Popen(self.command("--suite", suite), text=True, stdout=subprocess.PIPE,
                                  env={**self.env, "HANGS": str(hangs), "BUILD_HANGS": str(builds)},
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as script:
                end = time.monotonic() + 100
                while not (hangs.exists() and builds.exists() and builds.read_text()) and time.monotonic() < end:
                    time.sleep(0.05)
                script.send_signal(number)
                output = script.communicate(timeout=100)[0]
            self.assertEqual(script.returncode, 128 + number, output)
            self.assertEqual(output.splitlines()[-1], f"{passed} passed, 1 failed", output)
            self.assertIn(f"interrupted by {number.name} in stage ", output)
            for pid in (hangs, builds):
                left = pathlib.Path("/proc", pid.read_text().strip(), "stat")
                self.assertFalse(left.exists() and " Z " not in left.read_text(), "a process was left")

    def test_the_suites_it_knows_are_mesons(self):
        build = os.environ.get("BUILD_ROOT")
        if build is None:
            self.skipTest("no build folder")
        known = set(re.search(r"^meson_suites=\((.*)\)$", (SOURCE / "tools/lib/stages.sh").read_text(),
                              re.M)[1].split())
        text = subprocess.run([sys.executable, SOURCE / "tools/lib/programs_of.py", "--suites", build],
                              check=True, capture_output=True, text=True).stdout
        self.assertLessEqual(set(text.split()) - {"softhca"}, known)


if __name__ == "__main__":
    unittest.main(verbosity=2)
