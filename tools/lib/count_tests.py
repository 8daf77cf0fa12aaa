#!/usr/bin/env python3
"""Adds up what `meson test` ran.

usage: count_tests.py [--totals FILE] LABEL BUILD_FOLDER

Reads BUILD_FOLDER/meson-logs/testlog-all.json.  A test program of ours ends with a line "cases: N
passed, N failed, N skipped" and counts with these numbers; any other test counts as one.  A
program that crashed or ran out of time counts at least one failure.  Prints one line a suite,
the end of every failed test's output and the reason of everything skipped; adds the sums to
FILE ("passed failed skipped"), which it creates.
"""
import argparse
import json
import pathlib
import re

CASES = re.compile(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)
SKIPPED = re.compile(r"^(?:skipped|SKIP): *(.*)$", re.M)
TAIL_LINES = 40


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--totals")
    parser.add_argument("label")
    parser.add_argument("build", type=pathlib.Path)
    args = parser.parse_args()
    log = args.build / "meson-logs" / "testlog-all.json"
    tests = [json.loads(line) for line in log.read_text().splitlines() if line.strip()]

    suites = {}
    sums = [0, 0, 0]
    skips = []
    failures = []
    for test in tests:
        # Meson writes the name as "project:suite / name".
        suite, _, name = test["name"].rpartition(" / ")
        suite = suite.split(":")[-1] or "-"
        passed, failed, skipped, reasons = count(test)
        row = suites.setdefault(suite, [0, 0, 0])
        for i, n in enumerate((passed, failed, skipped)):
            row[i] += n
            sums[i] += n
        skips += [f"{suite}: {name}: {reason}" for reason in reasons]
        if failed:
            failures.append((suite, name, test))

    for suite, name, test in failures:
        print(f"--- failed: {args.label}, {suite}, {name} ({test['result']})")
        output = test.get("stdout", "") + "\n" + test.get("stderr", "")
        print("\n".join(output.strip().splitlines()[-TAIL_LINES:]))
    for suite, (passed, failed, skipped) in suites.items():
        print(f"  {args.label:10} {suite:10} {passed:5} passed {failed:4} failed {skipped:4} skipped")
    for reason in skips:
        print(f"    skipped {reason}")
    if args.totals:
        totals = pathlib.Path(args.totals)
        before = [int(n) for n in totals.read_text().split()] if totals.exists() else [0, 0, 0]
        totals.write_text(" ".join(str(a + b) for a, b in zip(before, sums)) + "\n")


if __name__ == "__main__":
    main()
