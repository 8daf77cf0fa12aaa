#!/usr/bin/env python3
"""usage: refused.py LIBRARY SCRIPT

Calls every mlx5dv function of LIBRARY that its linker SCRIPT (libmlx5.map) names and that is not
modelled, twice, and prints a JSON object: for each name what it returned each time, as the header
declares it, and errno.  Messages go to stderr.
"""
import ctypes
import json
import pathlib
import re
import sys

from mlx5_cases import MODELLED, YOUNG, declared

library, script = ctypes.CDLL(sys.argv[1], use_errno=True), pathlib.Path(sys.argv[2]).read_text()
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
RESULTS = {"int": ctypes.c_int, "pointer": ctypes.c_void_p, "void": None}
kinds, out = {**declared(), **YOUNG}, {}
versions = re.findall(r"^(\w[\w.]*) \{\n(.*?)^\}", script, re.M | re.S)
for name, version in [(n, v) for v, body in versions for n in re.findall(r"(\w*mlx5dv_\w+);", body)]:
    if name in MODELLED:
        continue
    address = libc.dlvsym(library._handle, name.encode(), version.encode())
    if address is None:
        out[name] = f"dlvsym finds no {version}"
        continue
    call = ctypes.CFUNCTYPE(RESULTS[kinds[name]], use_errno=True)(address)
    got = []
    for _ in range(2):
        ctypes.set_errno(0)
        value = call()
        got.append([kinds[name], value, ctypes.get_errno()])
    out[name] = got
print(json.dumps(out))
