#!/usr/bin/env python3
"""Checks who may know whom.

usage: layers.py ROOT | layers.py --self-test

 1. A file includes nothing from a layer above its own (ORDER), nor from one beside it (SIBLINGS).
 2. NCCL's ABI (plugin/nccl/abi) is known to plugin/nccl, and to the programs that play NCCL:
    tools and test.
 3. Only plugin/fabric names libibverbs' exported calls; the rest goes through the table
    (`verbs.create_qp(...)`).  The inline calls of the data path are free to all.  Two stand
    outside (VERBS): our own libibverbs, and an ordinary verbs program.
 4. Nothing includes CUDA's headers: the plugin loads on machines without CUDA.  Two programs have
    kernels of their own (CUDA_USERS) and are only built where CUDA is.
 5. Only its own tools and tests (MODEL_USERS) look into the software HCA; all others know its table
    (plugin/fabric/soft_hca.h).
"""
import pathlib
import re
import sys

# A folder's rooms stand before it: what lies in the folder itself is above all of them.  One that
# stands behind it is above the folder.
ORDER = ["plugin/base", "plugin/gpu", "plugin/fabric", "plugin/fabric/soft",
         "topology/model", "topology/read", "topology/probe", "topology/decide", "topology",
         "plugin/rdma",
         "proxy/wire", "proxy/queues", "proxy/connect", "proxy/send", "proxy/receive",
         "proxy",
         "gda/abi", "gda/memory", "gda/connect", "gda/served/front", "gda/adapter/mlx5", "gda/team",
         "gda/served/back", "gda/context", "gda/served", "gda/adapter", "gda", "gda/rma", "plugin/nccl", "tools", "test"]
# Folders side by side, with all of their rooms: neither may know the other.
SIBLINGS = [("proxy", "gda"), ("proxy/send", "proxy/receive"),
            ("topology/read", "topology/probe"), ("topology/read", "topology/decide"),
            ("gda/served/front", "gda/connect"),
            ("gda/served", "gda/adapter")]
# Single files that stand outside a layer's folder: the upper seams, which need no more than that.
FILES = {"plugin/transport.h": "plugin/base", "gda/gin.h": "gda/abi",
         "gda/one_sided.h": "gda/abi"}
VERBS = ("plugin/fabric/", "tools/softhca/", "test/fabric/conformance/")
CUDA_USERS = ("tools/gda_perf/", "test/gpu/behind/")
MODEL = "plugin/fabric/soft/"
MODEL_USERS = (MODEL, "tools/softhca/", "test/")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

INCLUDE = re.compile(r'\s*#\s*include\s+["<]([^">]+)[">]')
# A call through a member (`v.ibv_x(`, `v->ibv_x(`) is not one of the library's.
VERBS_CALL = re.compile(r"(?<![\w.>])(?:::)?(ibv_(?!post_|poll_cq|req_notify_cq)\w+)\s*\(")
CUDA = re.compile(r"(?:^|/)(?:cuda\w*|nvml|driver_types)\.h$")


def layer(path):
    if path in FILES:
        return ORDER.index(FILES[path])
    rooms = [folder for folder in ORDER if path.startswith(folder + "/")]
    return ORDER.index(max(rooms, key=len)) if rooms else None


def beside(one, other):
    within = lambda folder, of: folder == of or folder.startswith(of + "/")
    return any(within(one, a) and within(other, b) or within(one, b) and within(other, a)
               for a, b in SIBLINGS)


def strip_comments(text):
    """Comments and string literals blanked, lines kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def check(path, text):
    """Yields (line, message) for every breach in the file `path` with contents `text`."""
    own = layer(path)
    code = strip_comments(text).splitlines()
    for number, line in enumerate(text.splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            target = include[1]
            above = layer(target)
            if above is not None and above > own:
                yield number, f"{ORDER[own]} must not include {target} of {ORDER[above]}"
            elif above is not None and beside(ORDER[own], ORDER[above]):
                yield number, f"{ORDER[own]} must not know {ORDER[above]}: {target}"
            elif target.startswith(MODEL) and not path.startswith(MODEL_USERS):
                yield number, f"only plugin/fabric/soft knows its model: {target}; use plugin/fabric/soft_hca.h"
            elif target.startswith("plugin/nccl/abi/") and own < ORDER.index("plugin/nccl"):
                yield number, f"only plugin/nccl knows NCCL's ABI: {target}"
            ours = layer(target) is not None  # ours have a folder
            if CUDA.search(target) and not ours and not path.startswith(CUDA_USERS):
                yield number, f"CUDA header {target}; load the driver with dlopen instead"
            continue
        if not path.startswith(VERBS):
            for call in VERBS_CALL.finditer(code[number - 1]):
                yield number, f"{call[1]}: call it through the Verbs table"


def self_test():
    bad = {
        "proxy/a.cc": '#include "plugin/nccl/context.h"',
        "proxy/wire/a.h": '#include "proxy/queues/queue_set.h"',
        "proxy/send/a.h": '#include "proxy/receive/recv_comm.h"',
        "proxy/receive/a.h": '#include "proxy/send/send_comm.h"',
        "proxy/connect/a.h": '#include "proxy/session.h"',
        "plugin/base/a.h": '#include "plugin/fabric/verbs.h"',
        "topology/model/a.h": '#include "topology/read/guid.h"',
        "topology/probe/a.h": '#include "topology/decide/record.h"',
        "topology/decide/a.h": '#include "topology/read/read_machine.h"',
        "topology/read/a.h": '#include "topology/probe/probe.h"',
        "plugin/transport.h": '#include "plugin/fabric/fabric.h"',
        "gda/a.cc": '#include "plugin/nccl/abi/net.h"',
        "gda/b.cc": '#include "gda/rma/rma.h"',
        "gda/c.cc": '#include "proxy/transport.h"',
        "gda/context/b.h": '#include "proxy/queues/queue_set.h"',
        "gda/rma/b.cc": '#include "proxy/wire/handshake.h"',
        "plugin/rdma/a.h": '#include "proxy/wire/wr_id.h"',
        "gda/gin.h": '#include "gda/team/gin_core.h"',
        "gda/abi/a.h": '#include "gda/memory/retired.h"',
        "gda/served/front/a.h": '#include "gda/connect/mesh.h"',
        "gda/adapter/mlx5/a.h": '#include "gda/served/front/decode.h"',
        "gda/team/a.h": '#include "gda/served/back/gpu_flush.h"',
        "gda/served/back/a.h": '#include "gda/served/served_context.h"',
        "gda/rma/a.cc": '#include "plugin/nccl/context.h"',
        "plugin/fabric/b.cc": '#include "plugin/fabric/soft/device_spec.h"',
        "topology/model/b.cc": '#include "plugin/fabric/soft/device_spec.h"',
        "gda/served/back/b.h": '#include "plugin/fabric/soft/reach.h"',
        "tools/info/a.cc": '#include "plugin/fabric/soft/hca.h"',
        "proxy/b.cc": "  auto* qp = ibv_create_qp(pd, &attr);",
        "test/fabric/c.cc": "ibv_close_device(ctx);",
        "tools/softhca.cc": "return ibv_close_device(ctx);",
        "tools/c.cc": "return ::ibv_close_device(ctx);",
        "tools/d.cc": "#include <cuda_runtime.h>",
    }
    good = {
        "plugin/fabric/a.cc": "ibv_free_device_list(list);",
        "topology/decide/b.h": '#include "topology/probe/probe.h"',
        "proxy/receive/b.h": '#include "proxy/connect/connection.h"',
        "proxy/session.cc": '#include "proxy/send/send_comm.h"',
        "gda/rma/b.cc": '#include "gda/connect/mesh.h"',
        "gda/team/b.h": '#include "plugin/rdma/devices.h"',
        "gda/context/a.h": '#include "gda/gin.h"',
        "test/fabric/conformance/a.cc": "ibv_free_device_list(list);",
        "tools/softhca/a.cc": "int ibv_close_device(ibv_context* c) { return 0; }",
        "proxy/a.cc": "verbs.create_qp(pd); ibv_post_send(qp, wr, &bad); ibv_poll_cq(cq, 1, &wc);",
        "proxy/b.cc": "// ibv_create_qp(pd) is not called",
        "proxy/c.cc": 'TP_WARN("ibv_create_qp() failed on %s", name);',
        "test/abi/a.cc": '#include "plugin/nccl/abi/net.h"',
        "plugin/fabric/b.cc": '#include "plugin/fabric/soft_hca.h"',
        "plugin/fabric/soft/a.cc": '#include "plugin/fabric/soft/hca.h"',
        "tools/softhca/b.cc": '#include "plugin/fabric/soft/extended.h"',
        "tools/gda_perf/a.h": "#include <cuda_runtime.h>",
    }
    wrong = [f"not found: {p}: {t}" for p, t in bad.items() if not list(check(p, t))]
    wrong += [f"wrongly found: {p}: {t}" for p, t in good.items() if list(check(p, t))]
    print("\n".join(wrong) or f"{len(bad)} breaches found, {len(good)} clean files passed")
    return bool(wrong)


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    root = pathlib.Path(sys.argv[1])
    files = [root / f for f in FILES]
    files += [p for folder in ORDER for p in (root / folder).rglob("*") if p.suffix in SUFFIXES]
    breaches = 0
    for file in sorted(f for f in files if f.is_file()):
        path = file.relative_to(root).as_posix()
        for number, message in check(path, file.read_text()):
            print(f"{path}:{number}: {message}")
            breaches += 1
    print(f"{len(files)} files, {breaches} breaches")
    return breaches != 0


sys.exit(main())
