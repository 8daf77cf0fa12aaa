#!/usr/bin/env python3
"""The plugin exports exactly the symbols of the golden file.

usage: exports.py PLUGIN.so GOLDEN
A leaked symbol could bind to another library's in the same process; a missing one hides the
plugin from some release of NCCL.  UPDATE_GOLDEN=1 writes the file anew.
"""
import os
import pathlib
import subprocess
import sys

plugin, golden = sys.argv[1], pathlib.Path(sys.argv[2])
listing = subprocess.run(["nm", "-D", "--defined-only", plugin], check=True,
                         capture_output=True, text=True).stdout
# A version script also defines a symbol for each version name (type A); there are none here.
found = sorted(line.split()[-1] for line in listing.splitlines())
if os.environ.get("UPDATE_GOLDEN"):
    golden.write_text("\n".join(found) + "\n")
wanted = sorted(golden.read_text().split())
for symbol in sorted(set(found) ^ set(wanted)):
    print(("unexpected export: " if symbol in found else "missing export: ") + symbol)
sys.exit(found != wanted)
