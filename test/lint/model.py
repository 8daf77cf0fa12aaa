#!/usr/bin/env python3
"""The plugin holds nothing of the software HCA's model: it opens a library that does.

usage: model.py PLUGIN.so LIBRARY.so
By names, where both have symbol tables, and by what the model would say.
"""
import re
import subprocess
import sys

# The seam's types (plugin/fabric/soft_hca.h), which both know.
SEAM = re.compile(r"twinpath::soft::(Adapter|Place|Reach|Reached)\b")
MODEL = re.compile(r"twinpath::soft::\w+")
# Messages of hca.cc, memory.cc, and a key of device_spec.cc.
TEXTS = [b"soft HCA: membarrier", b"memory keys are in use", b"stands before any adapter name"]


def symbols(library):
    listing = subprocess.run(["nm", "-C", "--defined-only", library], capture_output=True, text=True).stdout
    names = [line.split(" ", 2)[2] for line in listing.splitlines() if line.count(" ") >= 2]
    # A template over a type of the seam is the seam's.
    return {name for name in names if MODEL.search(SEAM.sub("", name))}


def texts(library):
    with open(library, "rb") as file:
        content = file.read()
    return [text.decode() for text in TEXTS if text in content]


plugin, library = sys.argv[1:]
held, own = symbols(plugin), symbols(library)
for name in sorted(held)[:20]:
    print(f"the plugin holds {name}")
for text in texts(plugin):
    print(f"the plugin can say: {text}")
if len(texts(library)) != len(TEXTS):
    print("the library does not say what this test looks for:", texts(library))
print(f"{len(own)} symbols of the model in the library, {len(held)} in the plugin")
sys.exit(bool(held or texts(plugin)) or len(texts(library)) != len(TEXTS) or not own)
