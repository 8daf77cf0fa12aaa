"""What test/vm/suite makes of a program's end, and tools/lib/report.py of the results."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
REPORT = HERE.parent.parent / "tools" / "lib" / "report.py"


def load(path):
    loader = importlib.machinery.SourceFileLoader("suite", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("suite", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


suite = load(HERE / "suite")


def judge(status, output):
    return suite.Suite.judge(status, output, 5)


class Judge(unittest.TestCase):
    def test_a_silent_program_counts_once_by_its_status(self):
        self.assertEqual(judge(0, "some table\n"), (1, 0, 0, ""))
        self.assertEqual(judge(1, "it broke\n"), (0, 1, 0, "status 1: it broke"))
        self.assertEqual(judge(-11, ""), (0, 1, 0, "signal SIGSEGV"))

    def test_lines_count_one_by_one(self):
        output = "ok: one\nok: two\nFAILED: three: no\nskipped: four: none here\n"
        self.assertEqual(judge(1, output), (2, 1, 1, "three: no"))

    def test_the_last_line_of_a_test_program_counts_instead(self):
        output = "ok: one\ncases: 7 passed, 0 failed, 2 skipped\n"
        self.assertEqual(judge(0, output)[:3], (7, 0, 2))

    def test_a_crash_after_passed_cases_is_a_failure(self):
        self.assertEqual(judge(-6, "ok: one\n"), (1, 1, 0, "signal SIGABRT: ok: one"))
        self.assertEqual(judge(3, "cases: 2 passed, 0 failed, 0 skipped\n")[:2], (2, 1))

    def test_out_of_time_is_a_failure_whatever_passed_before(self):
        self.assertEqual(judge(None, "ok: one\n"), (1, 1, 0, "did not end within 5 s"))

    def test_cut_short_by_the_topology_is_no_failure_and_is_said(self):
        self.assertEqual(suite.Suite.judge(None, "ok: one\n", 5, True),
                         (1, 0, 1, "cut short after 5 s, no time left"))
        passed, failed, _, why = suite.Suite.judge(None, "FAILED: two: no\n", 5, True)
        self.assertEqual((passed, failed), (0, 1))
        self.assertIn("two: no", why)

    def test_a_failure_that_the_summary_forgets_counts(self):
        self.assertEqual(judge(0, "FAILED: a: no\ncases: 2 passed, 0 failed, 0 skipped\n")[:2],
                         (2, 1))

    def test_a_program_that_skips_everything_is_skipped(self):
        output = "skipped: one: no adapter\ncases: 0 passed, 0 failed, 1 skipped\n"
        self.assertEqual(judge(77, output), (0, 0, 1, "one: no adapter"))


class Long(unittest.TestCase):
    def test_what_is_long_runs_when_asked_for_and_else_does_not_count(self):
        for asked in ("", "1"):
            with tempfile.TemporaryDirectory() as empty, \
                    unittest.mock.patch.dict(os.environ, {"RXE_LONG": asked}), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                made = suite.Suite(suite.Table(HERE / "topologies"), "soft", pathlib.Path(empty),
                                   pathlib.Path(os.devnull), time.monotonic() + 60)
                made.run("a long one", 20, "long=yes true")
            self.assertEqual(made.sums, {"passed": len(asked), "failed": 0, "skipped": 0})
            self.assertEqual("ok: soft: a long one" in said.getvalue(), bool(asked))


class ExitStatus(unittest.TestCase):
    """Of a run in which nothing ran."""

    def suite(self, *words):
        with tempfile.TemporaryDirectory() as empty:
            return subprocess.run([sys.executable, str(HERE / "suite"), "--build", empty, *words],
                                  text=True, capture_output=True, check=False)

    def test_all_skipped_is_no_success(self):
        done = self.suite("siw")  # its only program is not built there
        self.assertIn("cases: 0 passed, 0 failed, 1 skipped\n", done.stdout)
        self.assertEqual(done.returncode, 77)

    def test_a_name_that_no_program_has_is_an_error(self):
        done = self.suite("--only", "no such program", "siw")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no program of siw has 'no such program' in its name", done.stderr)

    def test_run_and_what_calls_it_say_that_nothing_ran(self):
        with tempfile.TemporaryDirectory() as empty:
            script = f"""
                root={HERE.parent.parent}; results={empty}; cd $root
                say() {{ echo "say: $*"; }}; add() {{ echo "add: $*"; }}
                leave_out() {{ echo "left out: $1: $2"; }}
                . tools/lib/vm_suite.sh
                in_vm_environment() {{ "{HERE}/run" --build {empty} --results {empty} \\
                    --only 'conformance of the verbs' --seconds 25 soft; }}
                vm_suite soft"""
            done = subprocess.run(["bash", "-c", script], text=True, capture_output=True,
                                  check=False)
        self.assertIn("left out: VM suite: skipped: soft: no case ran, all were skipped\n",
                      done.stdout)
        self.assertIn("add: 0 0 1\n", done.stdout)


class LockedUp(unittest.TestCase):
    """A machine whose kernel stands still: what it had not done runs on another one, once."""

    def run_with(self, folder, machine):
        for name in ("run", "suite", "topologies"):
            (folder / name).write_bytes((HERE / name).read_bytes())
            (folder / name).chmod(0o755)
        (folder / "rxe-run").write_text("#!/bin/bash\n"
                                        "[ \"$1\" = --prepare ] && echo kernel && exit\n"
                                        f"echo \"$*\" >>{folder}/calls\n" + machine)
        (folder / "rxe-run").chmod(0o755)
        done = subprocess.run([str(folder / "run"), "--build", str(folder), "--results",
                               str(folder / "results"), "pair"], text=True, capture_output=True,
                              check=False)
        return done, (folder / "calls").read_text().splitlines()

    def test_once_and_then_it_has_failed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done, calls = self.run_with(folder, "echo 'rxe-run: a kernel inside locked up, ...'\n"
                                                "exit 125\n")
        self.assertEqual([" --resume" in call for call in calls], [False, True])
        self.assertIn("once more: pair: the machine's kernel locked up", done.stdout)
        self.assertIn("FAILED: pair: the virtual machine ended with status 125", done.stdout)
        self.assertEqual(done.returncode, 1)

    def test_the_second_run_counts(self):
        with tempfile.TemporaryDirectory() as name:
            done, _ = self.run_with(pathlib.Path(name), """
                case $* in *--resume*) echo 'cases: 3 passed, 0 failed, 1 skipped'; exit 0 ;; esac
                echo 'rxe-run: a kernel inside locked up, ...'
                exit 125
                """)
        self.assertIn("\ncases: 3 passed, 0 failed, 1 skipped\n", done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_a_link_that_dies_twice_is_told_of_and_no_failure(self):
        with tempfile.TemporaryDirectory() as name:
            done, calls = self.run_with(pathlib.Path(name), "exit 75\n")
        self.assertEqual([" --resume" in call for call in calls], [False, True])
        self.assertIn("skipped: pair: the link between the machines died there, too", done.stdout)
        self.assertIn("cases: 0 passed, 0 failed, 1 skipped\n", done.stdout)
        self.assertEqual(done.returncode, 77)

    def test_other_deaths_are_failures_at_once(self):
        with tempfile.TemporaryDirectory() as name:
            done, calls = self.run_with(pathlib.Path(name), "exit 125\n")
        self.assertEqual(len(calls), 1)
        self.assertEqual(done.returncode, 1)

    def test_what_has_a_result_is_counted_and_does_not_run_again(self):
        with tempfile.TemporaryDirectory() as name:
            results = pathlib.Path(name) / "r.jsonl"
            results.write_text(json.dumps({"program": "iWARP is named and not offered",
                                           "passed": 2, "failed": 1, "skipped": 0}) + "\n")
            done = subprocess.run([sys.executable, str(HERE / "suite"), "siw", "--build", name,
                                   "--results", str(results), "--resume"],
                                  text=True, capture_output=True, check=False)
        self.assertEqual(done.stdout, "cases: 2 passed, 1 failed, 0 skipped\n")


class Both(unittest.TestCase):
    """test/vm/both and the agent that it talks to, with this machine as both hosts."""

    def setUp(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.peer = f"127.0.0.1:{probe.getsockname()[1]}"
        self.agent = subprocess.Popen([sys.executable, str(HERE / "lib" / "agent"), self.peer])
        self.addCleanup(self.agent.wait)
        self.addCleanup(self.agent.kill)

    def both(self, *words, **env):
        env = {**os.environ, "RXE_PEER": self.peer, "RXE_CONTROL": "127.0.0.1", **env}
        return subprocess.run([sys.executable, str(HERE / "both"), *words], env=env, text=True,
                              capture_output=True, check=False, timeout=60)

    def test_ranks_go_round_and_settings_go_along(self):
        done = self.both("-n", "2", "sh", "-c", 'echo "$NCCL_X $1 $2"', "sh", NCCL_X="a 'b")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         ["a 'b --rank 0/4", "a 'b --rank 2/4", "b: a 'b --rank 1/4",
                          "b: a 'b --rank 3/4"])

    def test_the_worst_status_counts_wherever_it_was(self):
        self.assertEqual(self.both("sh", "-c", '[ "$2" = 0/2 ]', "sh").returncode, 1)
        self.assertEqual(self.both("sh", "-c", '[ "$2" = 1/2 ]', "sh").returncode, 1)
        self.assertEqual(self.both("sh", "-c", '[ "$2" = 0/2 ] || kill -9 $$', "sh").returncode, 9)


class Rows(unittest.TestCase):
    def table(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "topologies"
            path.write_text(text)
            return suite.Table(path)

    def test_the_real_table_can_be_read_and_every_variable_in_it_has_a_value(self):
        table = suite.Table(HERE / "topologies")
        self.assertGreater(len(table.rows), 10)
        self.assertEqual([t for t in table.topologies if table.only_long(t)], ["ring"])
        for topologies, _, _, command in table.rows:
            for topology in topologies:
                one = suite.Suite(table, topology, pathlib.Path("/build"), None, 0)
                self.assertNotIn("$", one.expand(command))

    def test_a_topology_that_is_not_there_or_a_bad_line_ends_the_run(self):
        for text in ("run moon | x | 5 | true\n", "topology a | b\n", "nonsense\n"):
            with self.assertRaises(SystemExit):
                self.table(text)


class Report(unittest.TestCase):
    LINES = [{"program": "p", "fabric": "siw", "result": "pass"},
             {"program": "p", "fabric": "rxe pair", "result": "fail", "detail": "x: why",
              "passed": 3, "failed": 1, "skipped": 0},
             {"program": "q", "fabric": "rxe pair", "result": "skip", "detail": "not here"},
             {"program": "q", "fabric": "soft HCA", "result": "pass", "passed": 4}]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        (self.at / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.LINES))

    def report(self, output, lines="r.jsonl"):
        return subprocess.run([sys.executable, str(REPORT), output, lines], cwd=self.at, text=True,
                              capture_output=True, check=False)

    def test_the_table_has_a_row_a_program_and_the_reasons_below(self):
        out = self.report("-").stdout
        self.assertIn("| program | soft HCA | rxe pair | siw |\n", out)
        self.assertIn("| p |  | **FAIL** 1 of 4 | pass |\n", out)
        self.assertIn("| q | pass 4 | skipped |  |\n", out)
        self.assertIn("- p, rxe pair: failed: x: why\n- q, rxe pair: skipped: not here\n", out)

    def test_what_passed_on_one_fabric_only_is_a_line(self):
        lines = [{"program": name, "fabric": "siw", "result": "pass"} for name in ("a", "b_*", "c", "d")]
        lines += [{"program": "e", "fabric": "siw", "result": "fail", "detail": "bad"},
                  {"program": "f", "fabric": "siw", "result": "pass", "passed": 2},
                  {"program": "d", "fabric": "soft", "result": "pass"},
                  {"program": "g", "fabric": "siw", "result": "pass"}]
        (self.at / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = self.report("-").stdout
        self.assertIn("\n\nOn siw only, and passed: a · b_\\* · c · g.\n\n- e, siw", out)
        self.assertIn("| d | pass | pass |\n| e |  | **FAIL** 1 of 1 |\n| f |  | pass 2 |\n\n", out)
        # Of one column, or of few programs, there is a row each.
        (self.at / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
        self.assertIn("| a | pass |\n", self.report("-").stdout)

    def test_a_file_with_markers_keeps_the_rest(self):
        text = "before\n<!-- report:begin -->\nold\n<!-- report:end -->\nafter\n"
        (self.at / "a.md").write_text(text)
        self.assertEqual(self.report("a.md").returncode, 0)
        new = (self.at / "a.md").read_text()
        self.assertTrue(new.startswith("before\n<!-- report:begin -->\n| program |"))
        self.assertTrue(new.endswith("not here\n<!-- report:end -->\nafter\n"))
        self.assertNotIn("old", new)

    def test_a_file_without_markers_is_not_overwritten(self):
        (self.at / "a.md").write_text("mine\n")
        self.assertNotEqual(self.report("a.md").returncode, 0)
        self.assertEqual((self.at / "a.md").read_text(), "mine\n")

    def test_other_words_for_the_same_are_understood(self):
        (self.at / "o.jsonl").write_text(
            '{"program": "p", "fabric": "soft", "result": "ok", "detail": "fine"}\n'
            '{"program": "q", "fabric": "soft", "result": "FAILED", "detail": "bad"}\n')
        out = self.report("-", "o.jsonl").stdout
        self.assertIn("| program | soft HCA |\n", out)
        self.assertIn("| p | pass |\n| q | **FAIL** 1 of 1 |\n", out)
        self.assertNotIn("fine", out)

    def test_json_has_the_same_numbers(self):
        self.assertEqual(self.report("a.json").returncode, 0)
        rows = json.loads((self.at / "a.json").read_text())["results"]
        row = next(r for r in rows if r["program"] == "p" and r["fabric"] == "rxe pair")
        self.assertEqual((row["passed"], row["failed"], row["details"]), (3, 1, ["x: why"]))

    def test_a_line_that_is_none_and_no_lines_at_all_are_errors(self):
        (self.at / "bad.jsonl").write_text('{"program": "p", "fabric": "f", "result": "maybe"}\n')
        bad = self.report("-", "bad.jsonl")
        self.assertIn("bad.jsonl:1", bad.stderr)
        (self.at / "empty.jsonl").write_text("")
        self.assertNotEqual(self.report("-", "empty.jsonl").returncode, 0)


if __name__ == "__main__":
    unittest.main()
