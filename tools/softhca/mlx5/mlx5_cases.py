"""Cases of tools/softhca/check about libmlx5: names and versions, what refuses, a queue pair made by
DevX commands, the record of the commands."""
import errno
import gzip
import json
import os
import pathlib
import re
import sys

from harness import Failed, Skipped, expect, last_line

HERE = pathlib.Path(__file__).resolve().parent
MODELLED = {"mlx5dv_" + name for name in (
    "is_supported open_device query_device init_obj devx_alloc_uar devx_free_uar devx_umem_reg "
    "devx_umem_reg_ex devx_umem_dereg devx_obj_create devx_obj_modify devx_obj_query devx_obj_destroy "
    "devx_general_cmd devx_query_eqn reg_dmabuf_mr get_data_direct_sysfs_path "
    "devx_create_event_channel devx_destroy_event_channel devx_get_event create_qp").split()}
# Younger than the headers of Debian 12.
YOUNG = {"mlx5dv_devx_uar_export_dmabuf_fd": "int", "__mlx5dv_create_flow": "pointer",
         "_mlx5dv_get_export_sizes": "void", "mlx5dv_devx_obj_export": "int",
         "mlx5dv_devx_obj_import": "pointer", "mlx5dv_devx_obj_unimport": "void",
         "mlx5dv_devx_umem_export": "int", "mlx5dv_devx_umem_import": "pointer",
         "mlx5dv_devx_umem_unimport": "void", "mlx5dv_var_export": "int",
         "mlx5dv_var_import": "pointer", "mlx5dv_var_unimport": "void"}
# These return a count or a descriptor.
BELOW_ZERO = {"mlx5dv_devx_uar_export_dmabuf_fd", "mlx5dv_qp_cancel_posted_send_wrs",
              "mlx5dv_vfio_get_events_fd"}
# What programs look up with a version: NCCL 2.28 to 2.30, NVSHMEM 3.4, and as they are linked: UCX.
LOOKED_UP = {"NCCL": "is_supported 1.8, get_data_direct_sysfs_path 1.25, reg_dmabuf_mr 1.25, "
                     "query_device 1.0, create_qp 1.3",
             "NVSHMEM": "is_supported 1.8, get_data_direct_sysfs_path 1.25, reg_dmabuf_mr 1.25, "
                        "devx_alloc_uar 1.7, devx_free_uar 1.7, devx_general_cmd 1.7, "
                        "devx_obj_create 1.7, devx_obj_destroy 1.7, devx_obj_modify 1.7, "
                        "devx_query_eqn 1.7, devx_umem_reg 1.7, devx_umem_reg_ex 1.19, "
                        "devx_umem_dereg 1.7, init_obj 1.2, create_qp 1.3",
             "UCX": "open_device 1.7, devx_create_event_channel 1.11, devx_obj_query 1.7, "
                    "devx_subscribe_devx_event 1.11, devx_get_event 1.11, create_mkey 1.10"}


def declared():
    """What each function returns, from mlx5dv.h: int, pointer or void."""
    for folder in ("/usr/include", "/usr/local/include"):
        header = pathlib.Path(folder, "infiniband/mlx5dv.h")
        if header.exists():
            text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
            found = re.findall(r"^([a-z][\w \t]*?[\s*]+)(_?mlx5dv_\w+)\s*\(", text, re.M)
            return {name: "pointer" if "*" in kind else "void" if kind.split()[-1] == "void" else "int"
                    for kind, name in found}
    raise Skipped("no infiniband/mlx5dv.h")


def folder(bench):
    found = bench.build / "tools/softhca/mlx5"
    if not (found / "libmlx5.so.1").exists():
        raise Skipped(f"{found}/libmlx5.so.1 is not built")
    return found


def names(bench):
    library = folder(bench) / "libmlx5.so.1"
    looked_up = [(f"mlx5dv_{n}", f"MLX5_{v}") for text in LOOKED_UP.values()
                 for n, v in re.findall(r"(\w+) ([\d.]+)", text)]
    program = ("import ctypes, sys\nl = ctypes.CDLL(sys.argv[1])\nd = ctypes.CDLL(None).dlvsym\n"
               "d.restype = ctypes.c_void_p\nd.argtypes = [ctypes.c_void_p] + 2 * [ctypes.c_char_p]\n"
               "for a in sys.argv[2:]:\n  n, v = a.split('@')\n"
               "  print(a, d(l._handle, n.encode(), v.encode()) is not None)\n")
    wanted = [f"{n}@{v}" for n, v in looked_up]
    text = bench.one(sys.executable, "-c", program, library, *wanted, "mlx5dv_is_supported@MLX5_1.7",
                     options=("--mlx5",))
    absent = [w for w in wanted if f"{w} True" not in text]
    expect(not absent, "dlvsym does not find " + ", ".join(absent))
    expect("mlx5dv_is_supported@MLX5_1.7 False" in text, "a version that never was is found")
    return f"{len(wanted)} look-ups of {', '.join(LOOKED_UP)}"


def refused(bench):
    text = bench.one(sys.executable, HERE / "refused.py", folder(bench) / "libmlx5.so.1",
                     HERE / "libmlx5.map", options=("--mlx5",),
                     env={"PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONDONTWRITEBYTECODE": "1"})
    answers = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    bad = []
    for name, calls in answers.items():
        number = -errno.EOPNOTSUPP if name in BELOW_ZERO else errno.EOPNOTSUPP
        said = len(re.findall(rf"soft HCA: {name} is not modelled", text))
        good = all(call in (["int", number, errno.EOPNOTSUPP], ["pointer", None, errno.EOPNOTSUPP],
                            ["void", None, errno.EOPNOTSUPP]) for call in calls)
        if not good or said != 1:
            bad.append(f"{name}: {calls}, named {said} times")
    expect(not bad, "; ".join(bad[:5]))
    expect(len(answers) == 142 - len(MODELLED), f"{len(answers)} functions refuse")
    return f"{len(answers)} functions"


def word(values):
    """Bits [high:low] of big-endian words: {byte: [(high, low, value)]} as 272 bytes in hexadecimal."""
    data = bytearray(272)
    for byte, fields in values.items():
        total = sum(value << low for _, low, value in fields)
        data[byte:byte + 4] = total.to_bytes(4, "big")
    return data.hex()


def check_record(lines, commands):
    """Every command of the program is there, whole, once, in order."""
    records = [json.loads(line) for line in lines]
    expect([r["n"] for r in records] == list(range(1, len(records) + 1)), "numbers are not 1, 2, ...")
    expect(len({r["pid"] for r in records}) == 1, "several processes")
    sent = [r for r in records if "in" in r]
    expect(len(sent) == commands, f"{len(sent)} commands of {commands} are there")
    for r in records:
        expect("call" in r and r["device"] == "mlx5_0" and isinstance(r["rc"], int), f"{r}")
    for r in sent:
        if r["rc"] == 0:
            expect(len(r["in"]) >= 32 and int(r["in"][:4], 16) == r["opcode"], f"{r}")
            expect(len(r["out"]) >= 32 and r["out"][:2] == "00", f"{r}")
    by_name = {r.get("name", ""): r for r in sent if r["rc"] == 0}
    for name, outputs in (("QUERY_HCA_CAP", 4112), ("CREATE_CQ", 16), ("CREATE_QP", 16),
                          ("RST2INIT_QP", 16), ("INIT2RTR_QP", 16), ("RTR2RTS_QP", 16),
                          ("2ERR_QP", 16), ("2RST_QP", 16), ("QUERY_QP", 272)):
        expect(name in by_name, f"{name} is not there")
        lengths = {len(r["out"]) // 2 for r in sent if r.get("name") == name and r["rc"] == 0}
        expect(outputs in lengths, f"{name}: answers of {lengths} bytes instead of {outputs}")
    # Two commands, byte for byte, from the numbers in the other records.
    umem = [r["umem_id"] for r in records if r["call"] == "devx_umem_reg_ex" and r["rc"] == 0]
    page = next(r["page_id"] for r in records if r["call"] == "devx_alloc_uar")
    eqn = next(r["eqn"] for r in records if r["call"] == "devx_query_eqn")
    pdn = next(r["pdn"] for r in records if "pdn" in r)
    made = {r["name"]: r for r in reversed(sent) if r["call"] == "devx_obj_create" and r["rc"] == 0}
    cqn = int(made["CREATE_CQ"]["out"][18:24], 16)
    expect(made["CREATE_CQ"]["in"] == word({
        0x00: [(31, 16, 0x400)], 0x10: [(25, 25, 1), (17, 17, 1)], 0x14: [(31, 0, umem[1])],
        0x1c: [(28, 24, 7), (23, 0, page)], 0x24: [(7, 0, eqn)], 0x58: [(31, 0, umem[0])],
        0x5c: [(31, 31, 1)]}), "CREATE_CQ: other bytes")
    expect(made["CREATE_QP"]["in"] == word({
        0x00: [(31, 16, 0x500)], 0x1c: [(23, 0, pdn)], 0x20: [(14, 11, 7), (7, 6, 1)], 0x24: [(23, 0, page)],
        0x94: [(23, 0, cqn)], 0xac: [(23, 0, 1)], 0xc4: [(26, 24, 3)], 0xe8: [(28, 28, 1)],
        0xfc: [(31, 0, umem[3])], 0x108: [(31, 0, umem[2])], 0x10c: [(31, 31, 1)]}),
        "CREATE_QP: other bytes")
    refused = [r for r in sent if "refused" in r]
    expect({r["out"][:2] for r in refused} == {"05"}, "refusals without their status")
    busy = [r for r in records if r["rc"] == errno.EBUSY]
    expect(len(busy) == 7, f"{len(busy)} refusals to destroy what is in use")


def selftest(bench, link, scratch):
    program = folder(bench) / "softhca-mlx5-selftest"
    if not program.exists():
        raise Skipped(f"{program} is not built")
    record = scratch / f"{link}.jsonl"
    text = bench.one(program, options=("--mlx5", "--link", link, "--hcas", "soft0,other", "--record",
                                       record))
    expect("FAILED" not in text and text.count("ok: ") == 9, last_line(text))
    commands = int(re.search(r"^commands: (\d+)$", text, re.M)[1])
    lines = record.read_text().splitlines()
    check_record(lines, commands)
    return f"{commands} commands, {len(lines)} lines of record"


def gpu_memory(bench):
    """Queues, completions and doorbell records in the memory of a GPU that a stub of the driver plays."""
    stub = folder(bench) / "stub/libcuda.so.1"
    text = bench.one("env", f"LD_PRELOAD={stub}", folder(bench) / "softhca-mlx5-selftest",
                     options=("--mlx5", "--hcas", "soft0,other"))
    expect("FAILED" not in text and "not carried out" not in text, last_line(text))
    expect("GPU memory is not used" in text, "the stub was not loaded")  # it lacks what the plugin wants


def accept_all(bench, scratch):
    """SOFTHCA_DEVX=accept: what the device refuses succeeds, and the record says what was wrong."""
    record = scratch / "accepted.jsonl"
    text = bench.one(folder(bench) / "softhca-mlx5-selftest", status=1, env={"SOFTHCA_DEVX": "accept"},
                     options=("--mlx5", "--hcas", "soft0,other", "--record", record))
    expect("FAILED: commands that are refused" in text and text.count("FAILED") == 1, last_line(text))
    expect("it succeeds all the same" in text, "nothing is said of it")
    accepted = [r for r in map(json.loads, record.read_text().splitlines()) if "refused" in r]
    expect(accepted and all(r["rc"] == 0 and r["out"][:2] == "00" for r in accepted), f"{accepted}")


def nothing_to_write_or_register(bench, scratch):
    """A record that cannot be written and a CUDA that is not there to register doorbells with are said, no more."""
    text = bench.one(folder(bench) / "softhca-mlx5-selftest", env={"SOFTHCA_REGISTER_UAR": "1"},
                     options=("--mlx5", "--hcas", "soft0,other", "--record", scratch / "no/such/folder/file"))
    expect(text.count("nothing is recorded") == 1 and "No such file" in text, last_line(text))
    expect("has not loaded libcuda.so.1" in text and "FAILED" not in text, last_line(text))


def pyverbs_place(bench):
    """A Python that has pyverbs, and the environment that it needs: this one, or the system's, for
    which the package is; installed, or unpacked in $SOFTHCA_PYVERBS."""
    unpacked = os.environ.get("SOFTHCA_PYVERBS")
    env = {"PYTHONPATH": f"{unpacked}/usr/lib/python3/dist-packages"} if unpacked else {}
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            bench.one(python, "-c", "import pyverbs.device", options=("--mlx5",), env=env)
            return python, env
        except Failed:
            pass
    raise Skipped("pyverbs is not installed (Debian: python3-pyverbs)")


def pyverbs(bench):
    """rdma-core's Python bindings load."""
    python, env = pyverbs_place(bench)
    text = bench.one(python, "-c",
                     "from pyverbs.providers.mlx5.mlx5dv import *\n"
                     "from pyverbs.device import get_device_list\n"
                     "print([d.name.decode() for d in get_device_list()], "
                     "[is_mlx5dv_supported(d) if 'is_mlx5dv_supported' in dir() else 1 "
                     "for d in get_device_list()])", options=("--mlx5",), env=env)
    expect("['mlx5_0']" in text, last_line(text))


# Runs one of rdma-core's test modules.  The MAC that these tests ask of a network interface, which a
# software adapter has not, they get from here.
RUN_TESTS = """
import sys
sys.path[:0] = [sys.argv[1] + "/tests", sys.argv[1]]
module = sys.argv[2]
sys.argv[1:] = ["--dev", "mlx5_0"]
from args_parser import parser
parser.parse_args()
import unittest
import tests.mlx5_base as base
before = base.Mlx5DevxTrafficBase.pre_run
def pre_run(self):
    self.mac_addr = "02:04:00:00:00:01"
    before(self)
base.Mlx5DevxTrafficBase.pre_run = pre_run
__import__(module)
unittest.main(module=module, argv=["tests", "-v"])
"""


# rdma-core's modules of tests that ask nothing of mlx5: how many tests pass at least, and for what
# the others are skipped (README.md, What is not modelled); those of test_qp choose by chance what they
# ask for.  Left out, as all of theirs are skipped:
# odp, tag_matching, flow, rss_traffic; and shared_pd, which imports objects of another context.
CORE_TESTS = {"device": 12, "pd": 4, "addr": 2, "parent_domain": 3, "cq": 3, "cq_events": 1, "cqex": 1,
              "qp": 1, "qpex": 9, "mr": 1, "atomic": 7, "relaxed_ordering": 1, "fork": 1}
SKIPS = re.compile(r"not supported|No ODP caps|no huge pages|All gid indices populated|/dev/dri")


def core_tests(bench, scratch):
    """Their traffic and refusals: what is modelled passes, and the rest is skipped as not supported."""
    python, env, place = rdma_core_place(bench, scratch)
    wrong = []
    for module, least in CORE_TESTS.items():
        text = bench.one(python, "-c", RUN_TESTS, place, f"tests.test_{module}", options=("--mlx5", "--files"),
                         env=env)
        skips = re.findall(r"\.\.\. skipped '(.*)'$", text, re.M)
        ran = re.search(r"^Ran (\d+) test", text, re.M)
        passed = int(ran[1]) - len(skips) if ran else 0
        strange = [s for s in skips if not SKIPS.search(s)]
        if not re.search(r"^OK\b", text, re.M) or passed < least or strange:
            wrong.append(f"test_{module}: {passed} passed of {least}; {strange}; {last_line(text)}")
    expect(not wrong, " | ".join(wrong))


def rdma_core_place(bench, scratch):
    """Python, its environment, and the folder that holds rdma-core's package of tests, unpacked."""
    python, env = pyverbs_place(bench)
    packaged = pathlib.Path(os.environ.get("RDMA_CORE_TESTS") or
                            os.environ.get("SOFTHCA_PYVERBS", "") + "/usr/share/doc/rdma-core/tests")
    if not packaged.is_dir():
        raise Skipped(f"{packaged} is not there (Debian: python3-pyverbs; RDMA_CORE_TESTS names another)")
    unpacked = scratch / "tests"
    unpacked.mkdir(exist_ok=True)
    for file in packaged.iterdir():
        if file.suffix == ".gz":
            (unpacked / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.suffix == ".py":
            (unpacked / file.name).write_bytes(file.read_bytes())
    return python, {"PYTHONDONTWRITEBYTECODE": "1", **env}, scratch


def rdma_core_tests(bench, scratch, link):
    """rdma-core's test_mlx5_devx: 1000 messages between queue pairs that it makes by commands."""
    python, env, place = rdma_core_place(bench, scratch)
    text = bench.one(python, "-c", RUN_TESTS, place, "tests.test_mlx5_devx", options=("--mlx5", "--link", link, "--hcas", "soft0,mlx5=both-clocks"), env=env)
    expect(re.search(r"^OK$", text, re.M) and "skipped" not in text, last_line(text))


def cases(bench, scratch):
    yield "libmlx5: names that programs look up, with versions", lambda: names(bench)
    yield "libmlx5: the rest refuses, and says so once", lambda: refused(bench)
    for link in ("ethernet", "infiniband"):
        yield f"libmlx5: queue pair by DevX and its record, link {link}", lambda x=link: selftest(
            bench, x, scratch)
    yield "libmlx5: queues in GPU memory, a stub of CUDA", lambda: gpu_memory(bench)
    yield "libmlx5: commands that are wrong succeed on request", lambda: accept_all(bench, scratch)
    yield "libmlx5: no place for a record, no CUDA for doorbells", lambda: nothing_to_write_or_register(
        bench, scratch)
    yield "libmlx5: pyverbs loads", lambda: pyverbs(bench)
    for link in ("ethernet", "infiniband"):
        yield f"libmlx5: rdma-core's test_mlx5_devx, link {link}", lambda x=link: rdma_core_tests(
            bench, scratch, x)
    yield "libmlx5: rdma-core's tests of devices, memory, queues, traffic, atomics", lambda: core_tests(
        bench, scratch)
