#!/usr/bin/env python3
"""Prints the build targets that the tests of some suites need, one a line, and the fuzz targets.

usage: programs_of.py FOLDER SUITE...
       programs_of.py --suites FOLDER      prints the suites instead

FOLDER is a configured build folder.  `ninja` alone would build what other suites need as well.
"""
import json
import os
import subprocess
import sys


def introspect(folder, what):
    done = subprocess.run(["meson", "introspect", what, folder], check=True, capture_output=True)
    return json.loads(done.stdout)


def main(folder, suites):
    files = {}
    needed = set()
    for target in introspect(folder, "--targets"):
        files[target["id"]] = [os.path.relpath(f, folder) for f in target["filename"]]
        if target["name"].startswith("fuzz-"):
            needed.update(files[target["id"]])
    for test in introspect(folder, "--tests"):
        if any(suite.split(":")[-1] in suites for suite in test["suite"]):
            for name in test["depends"]:
                needed.update(files.get(name, []))
    print("\n".join(sorted(needed)))


def print_suites(folder):
    print("\n".join(sorted({suite.split(":")[-1] for test in introspect(folder, "--tests")
                            for suite in test["suite"]})))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--suites":
        sys.exit(print_suites(sys.argv[2]))
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(os.path.realpath(sys.argv[1]), sys.argv[2:])
