#!/usr/bin/env python3
"""Adds up what `meson test` ran.

usage: count_tests.py [--totals FILE] [--failures FILE] LABEL BUILD_FOLDER

Reads BUILD_FOLDER/meson-logs/testlog-all.json.  A test program of ours ends with a line "cases: N
passed, N failed, N skipped" and counts with these numbers; any other test counts as one.  A
program that crashed or ran out of time counts at least one failure.  Prints one line a suite,
the end of every failed test's output and the reason of everything skipped, once where several cases
of a suite share it.  Adds the sums to the first FILE ("passed failed skipped"), which it creates, and
what failed to the second, in short.
"""
import argparse
import json
import pathlib
import re

CASES = re.compile(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)
SKIPPED = re.compile(r"^(?:skipped|SKIP): *(.*)$", re.M)
TAIL_LINES = 40
SHORT_LINES = 16
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--totals")
    parser.add_argument("--failures")
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
        output = test.get("stdout", "") + "\n" + test.get("stderr", "")
        lines = output.strip().splitlines()
        print("\n".join(lines[-TAIL_LINES:]))
        if args.failures:
            short = [line for line in lines if not FILLER.match(line)][-SHORT_LINES:]
            with open(args.failures, "a", encoding="utf-8") as out:
                out.writelines(f"{line}\n" for line in [what, *("    " + line for line in short)])
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
