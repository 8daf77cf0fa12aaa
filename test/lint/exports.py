#!/usr/bin/env python3
"""A library exports exactly the symbols of the golden file, or of its linker version script.

usage: exports.py LIBRARY.so GOLDEN
       exports.py LIBRARY.so SCRIPT.map COUNT
A leaked symbol could bind to another library's in the same process; a missing one hides the
plugin from some release of NCCL, or ends a program at its start.  The linker says nothing of a
name in a script that nobody defines.  COUNT is the script's entries, so that none goes by mistake.
UPDATE_GOLDEN=1 writes a golden file anew.
"""
import os
import pathlib
import re
import subprocess
import sys


def of_script(text):
    """What nm shows of a library that has all of the script: its versions, and each name with one.
    Of a name with several versions the last is the default."""
    versions, named = [], {}
    for version, body in re.findall(r"^(\w[\w.]*) \{\n(.*?)^\}", text, re.M | re.S):
        versions.append(version)
        for name in re.findall(r"^\s+(\w+);$", body, re.M):
            named.setdefault(name, []).append(version)
    return versions + [f"{name}@{'@' if v == of[-1] else ''}{v}" for name, of in named.items()
                       for v in of]


plugin, golden = sys.argv[1], pathlib.Path(sys.argv[2])
listing = subprocess.run(["nm", "-D", "--defined-only", plugin], check=True,
                         capture_output=True, text=True).stdout
found = sorted(line.split()[-1] for line in listing.splitlines())
if golden.suffix == ".map":
    wanted = sorted(of_script(golden.read_text()))
    if len(wanted) != int(sys.argv[3]):
        sys.exit(f"{golden.name} has {len(wanted)} entries, not {sys.argv[3]}")
else:
    # None of these has versions, whose names nm would show, too (type A).
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text("\n".join(found) + "\n")
    wanted = sorted(golden.read_text().split())
for symbol in sorted(set(found) ^ set(wanted)):
    print(("unexpected export: " if symbol in found else "missing export: ") + symbol)
sys.exit(found != wanted)
