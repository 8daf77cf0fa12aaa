#!/usr/bin/env python3
"""Adds up what `meson test` ran.

usage: count_tests.py [--totals FILE] [--failures FILE] [--unsteady FILE] LABEL BUILD_FOLDER
       count_tests.py --worth-another-run BUILD_FOLDER

Reads BUILD_FOLDER/meson-logs/testlog-all.json, and testlog-first.json, where it is: what was run once
more counts as it ended then; what failed first and passed then goes to the file of --unsteady.  A test
program of ours ends with a line "cases: N passed, N failed, N skipped" and counts with these numbers;
any other test counts as one.  A program that crashed or ran out of time counts at least one failure.
Prints one line a suite, the first wrong expectation and the end of every failed test's output, and the
reason of everything skipped, once where several cases of a suite share it.  Adds the sums to the first
FILE ("passed failed skipped"), which it creates, and what failed to the second, in short.

--worth-another-run names the tests of which a second run, alone, tells whether they failed by what ran
beside them: a few that failed or took too long.  Not one that crashed or that a sanitizer reported:
such a thing is there once it was seen.
"""
import argparse
import json
import pathlib
import re

CASES = re.compile(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)
SKIPPED = re.compile(r"^(?:skipped|SKIP): *(.*)$", re.M)
TAIL_LINES = 40
SHORT_LINES = 16
MOST_AGAIN = 3  # more have a common cause
REPORT = re.compile(r"ERROR: (?:Address|Leak)Sanitizer|WARNING: ThreadSanitizer|: runtime error: ")
EXPECTATION = re.compile(r": FAILED:\s*$")
# What says nothing of why a program failed.
FILLER = re.compile(r"^(?:skipped:.*|SKIP:.*|cases: .*|[=~.-]{20,}|\s*)$")


def count(test):
    """(passed, failed, skipped, reasons of skips) of one entry of the log."""
    output = test.get("stdout", "")
    reasons = SKIPPED.findall(output)
    result = test["result"]
    found = CASES.findall(output)
    if found:
        passed, failed, skipped = (sum(int(row[i]) for row in found) for i in range(3))
    else:
        passed, failed, skipped = 0, 0, 0
        if result in ("OK", "EXPECTEDFAIL"):
            passed = 1
        elif result == "SKIP":
            skipped = 1
            reasons = reasons or (output.strip().splitlines() or ["no reason given"])[-1:]
    if result == "INTERRUPT":  # with the whole run, which says so itself
        failed = 0
    elif result not in ("OK", "EXPECTEDFAIL", "SKIP") and failed == 0:
        failed = 1
    return passed, failed, skipped, reasons


def shared(skips):
    """Of "SUITE: NAMES: REASON", one line for each suite and reason."""
    groups = {}
    for skip in skips:
        groups.setdefault((skip.split(": ")[0], skip.split(": ")[-1]), []).append(skip)
    return [skips[0] if len(skips) == 1 else f"{suite}: {len(skips)} cases: {reason}"
            for (suite, reason), skips in groups.items()]


def read(log):
    """The log's entries by their names."""
    tests = [json.loads(line) for line in log.read_text().splitlines() if line.strip()]
    return {test["name"]: test for test in tests}


def said(test):
    return test.get("stdout", "") + "\n" + test.get("stderr", "")


def what_tells(test, most):
    """The last lines of what a test said, behind the first expectation that did not hold (Catch2's
    words), which what was logged later, to another stream, may have driven out."""
    lines = [line for line in said(test).strip().splitlines() if not FILLER.match(line)]
    first = next((i for i, line in enumerate(lines) if EXPECTATION.search(line)), len(lines))
    if first >= len(lines) - most:
        return lines[-most:]
    block = lines[max(first - 2, 0):first + 8]
    return [*block, "...", *lines[len(block) + 1 - most:]]


def worth_another_run(tests):
    failed = [test for test in tests if count(test)[1]]
    again = [test["name"].rpartition(" / ")[2] for test in failed
             if test["result"] in ("FAIL", "TIMEOUT") and not REPORT.search(said(test))]
    return again if len(failed) <= MOST_AGAIN else []


def tell(path, what, test):
    """Appends to a file, where there is one, how a test failed, in short."""
    if path:
        with open(path, "a", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in
                           [what, *("    " + line for line in what_tells(test, SHORT_LINES))])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--totals")
    parser.add_argument("--failures")
    parser.add_argument("--unsteady")
    parser.add_argument("--worth-another-run", action="store_true")
    parser.add_argument("label", nargs="?")
    parser.add_argument("build", type=pathlib.Path)
    args = parser.parse_args()
    logs = args.build / "meson-logs"
    tests = read(logs / "testlog-all.json")
    if args.worth_another_run:
        print("\n".join(worth_another_run(tests.values())))
        return
    first = read(logs / "testlog-first.json") if (logs / "testlog-first.json").exists() else {}
    for name, test in first.items():
        if name in tests and count(test)[1] and not count(tests[name])[1]:
            tell(args.unsteady, f"{args.label}: {name} ({test['result']})", test)
    tests = {**first, **tests}.values()

    suites = {}
    sums = [0, 0, 0]
    skips = []
    failures = []
    for test in tests:
        # Meson writes the name as "project:suite / name", or "project:suite+suite / name".
        suite, _, name = test["name"].rpartition(" / ")
        suite = re.split("[:+]", suite)[-1] or "-"
        passed, failed, skipped, reasons = count(test)
        row = suites.setdefault(suite, [0, 0, 0])
        for i, n in enumerate((passed, failed, skipped)):
            row[i] += n
            sums[i] += n
        skips += [f"{suite}: {name}: {reason}" for reason in reasons]
        if failed:
            failures.append((suite, name, test))

    for suite, name, test in failures:
        what = f"{args.label}: {suite}: {name} ({test['result']})"
        print(f"--- failed: {what}")
        print("\n".join(what_tells(test, TAIL_LINES)))
        tell(args.failures, what, test)
    for suite, (passed, failed, skipped) in suites.items():
        print(f"  {args.label:10} {suite:10} {passed:5} passed {failed:4} failed {skipped:4} skipped")
    for reason in shared(skips):
        print(f"    skipped {reason}")
    if args.totals:
        totals = pathlib.Path(args.totals)
        before = [int(n) for n in totals.read_text().split()] if totals.exists() else [0, 0, 0]
        totals.write_text(" ".join(str(a + b) for a, b in zip(before, sums)) + "\n")


if __name__ == "__main__":
    main()
