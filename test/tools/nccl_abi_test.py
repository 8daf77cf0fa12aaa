"""tools/nccl_abi.py: what it says of the releases in test/golden, of one that adds something, of
our sources as they were before use_mcst was served, and how it reads a wheel."""
import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(os.environ["SOURCE_ROOT"])
TOOL = SOURCE / "tools" / "nccl_abi.py"
sys.path.insert(0, str(SOURCE / "tools" / "lib"))
import layouts  # noqa: E402
GOLDEN = SOURCE / "test" / "golden" / "nccl_abi.json"
NEWEST = "2.32.3"

# What a library and its headers say, on a small scale.
LIBRARY = """\
#include <cstdint>
typedef struct { int nSignals; int isNew; } ncclGinConfig_v14_t;
typedef struct { const char* name; int (*init)(void**, std::uint64_t, void (*)(int, ...));
                 int (*createContext)(void*, ncclGinConfig_v14_t*, float); } ncclGin_v14_t;
struct ncclGinGdakiGPUContext { char other[8]; };  // the headers' one counts
ncclGin_v14_t table;
ncclGinGdakiGPUContext context;
extern "C" const char* names(int n) { return n ? "ncclGinPlugin_v14" : "ncclGinPlugin_v15"; }
"""
HEADERS = {
    "nccl.h": "#define NCCL_MAJOR 3\n#define NCCL_MINOR 1\n#define NCCL_PATCH 4\n",
    "nccl_device/gin/gdaki/gin_gdaki_device_host_common.h":
        "#define NCCL_GIN_GDAKI_VERSION 300\n"
        "template <class T> struct Table { T* buffer; unsigned offset; };\n"
        "struct ncclGinGdakiGPUContext { void* gdqp; Table<int> counters_table; "
        "bool use_mcst; };\n",
    "nccl_device/gin/gdaki/doca_gpunetio/common/doca_gpunetio_verbs_dev.h":
        "struct doca_gpu_dev_verbs_qp { unsigned long sq_rsvd_index; unsigned char reserved1[3]; "
        "union { int a; char b[6]; } either; } __attribute__((packed));\n",
}


class NcclAbiTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_tool(self, *args, status=0):
        done = subprocess.run([sys.executable, str(TOOL), *map(str, args)], capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def report_of(self, document, *args):
        path = self.folder / "facts.json"
        path.write_text(json.dumps(document))
        text = self.run_tool("--facts", path, *args, status=1)
        return text[text.index(f"NCCL {NEWEST} "):].splitlines()[1:]

    def sources_with(self, text, other):
        """The plugin's declarations, with a part of abi.h as it once was."""
        sources = self.folder / "sources"
        for part in ("gda/abi", "plugin/nccl/abi", "plugin/base", "test/golden/exports.txt"):
            (sources / part).parent.mkdir(parents=True, exist_ok=True)
            (sources / part).symlink_to(SOURCE / part)
        (sources / "gda/abi").unlink()
        shutil.copytree(SOURCE / "gda/abi", sources / "gda/abi")
        header = sources / "gda/abi/abi.h"
        before = header.read_text()
        self.assertIn(text, before)
        kept = [line for line in before.replace(text, other).splitlines(keepends=True)
                if "reads_sink) ==" not in line]
        header.write_text("".join(kept))
        return sources

    def test_releases_are_served_as_the_golden_file_says(self):
        text = self.run_tool("--facts", GOLDEN, status=1)
        self.assertEqual(text, GOLDEN.with_suffix(".txt").read_text())

    def test_use_mcst_is_found_where_we_had_padding(self):
        sources = self.sources_with("std::uint8_t reads_sink;\n  std::uint8_t zero[3];",
                                    "std::uint32_t zero;")
        lines = self.report_of(json.loads(GOLDEN.read_text()), "--source", sources)
        self.assertIn("    ncclGinGdakiGPUContext.use_mcst at 68, 1 B, which is reads_sink: "
                      "DeviceContext88 has zero at 68, 4 B", lines)

    def test_what_a_release_adds_is_told(self):
        document = json.loads(GOLDEN.read_text())
        before = self.report_of(document)
        newer = copy.deepcopy(document)
        newer["releases"][NEWEST]["gdaki"] = 300
        for family in newer["releases"][NEWEST]["asks"].values():
            family.append(99)
        structs = {s["name"]: s for s in newer["structs"] if NEWEST in s["in"]}
        context = structs["ncclGinGdakiGPUContext"]
        context["fields"].append(["use_more", 69, 1, "i"])
        newer["structs"].append({**context, "name": "ncclGinGdakiGPUContext_v7"})
        config = structs["ncclGinConfig_v14_t"]
        config["size"] += 4
        config["fields"].append(["more", 28, 4, "i"])
        iget = next(f for f in structs["ncclRma_v16_t"]["fields"] if f[0] == "iget")
        iget[3] = iget[3].replace("i8", "i4", 1)
        queue = structs["doca_gpu_dev_verbs_qp"]
        next(f for f in queue["fields"] if f[0] == "nic_handler")[1] -= 4
        added = [line for line in self.report_of(newer) if line not in before]
        self.assertEqual([line.strip() for line in added], [
            "not served: ncclNetPlugin_v99",
            "not served: ncclGinPlugin_v99",
            "not served: ncclRmaPlugin_v99",
            "not served: ncclProfiler_v7, ncclProfiler_v99",
            "ncclGinConfig_v14_t: 32 B, ours 28",
            "ncclGinConfig_v14_t.more at 28, 4 B: ours has nothing",
            "ncclRma_v16_t.iget is (i4: *, i4, i4, *, i8, i8, *, i4, i4, **), "
            "ours (i4: *, i4, i8, *, i8, i8, *, i4, i4, **)",
            "doca_gpu_dev_verbs_qp.nic_handler at 284, 4 B, which is nic_handler: "
            "DeviceQp30 has zero_cq at 224, 64 B",
            "ncclGinGdakiGPUContext.use_more at 69, 1 B, not known here: "
            "DeviceContext88 has zero at 69, 3 B",
            "not served: kernels with ncclGinGdakiGPUContext_v7",
            "not served: device structs of version 300"])

    def make_wheel(self, *flags):
        root = self.folder / "root" / "nvidia" / "nccl"
        (root / "lib").mkdir(parents=True, exist_ok=True)
        for name, text in HEADERS.items():
            (root / "include" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "include" / name).write_text(text)
        subprocess.run(["g++", *flags, "-shared", "-fPIC", "-x", "c++", "-", "-o",
                        str(root / "lib" / "libnccl.so.2")], input=LIBRARY, text=True, check=True)
        wheel = self.folder / "nvidia_nccl_cu99-3.1.4-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in sorted(root.rglob("*")):
                archive.write(path, path.relative_to(self.folder / "root"))
        return wheel

    def test_a_wheel_is_read(self):
        facts = self.folder / "facts.json"
        for dwarf in ("-gdwarf-4", "-gdwarf-5"):
            with self.subTest(dwarf):
                facts.unlink(missing_ok=True)
                self.run_tool("--facts", facts, "--add", self.make_wheel("-g", dwarf), status=1)
                document = json.loads(facts.read_text())
                self.assertEqual(document["releases"], {"3.1.4": {"gdaki": 300, "asks": {
                    "ncclNetPlugin": [], "ncclGinPlugin": [14, 15], "ncclRmaPlugin": [],
                    "ncclProfiler": []}}})
                self.assertEqual({s["name"]: (s["size"], s["fields"])
                                  for s in document["structs"]}, {
                    "ncclGin_v14_t": (24, [
                        ["name", 0, 8, "*"], ["init", 8, 8, "(i4: **, i8, (void: i4, ...))"],
                        ["createContext", 16, 8, "(i4: *, *ncclGinConfig_v14_t, f4)"]]),
                    "ncclGinConfig_v14_t": (8, [["nSignals", 0, 4, "i"], ["isNew", 4, 4, "i"]]),
                    "ncclGinGdakiGPUContext": (32, [
                        ["gdqp", 0, 8, "*"], ["counters_table.buffer", 8, 8, "*"],
                        ["counters_table.offset", 16, 4, "i"], ["use_mcst", 24, 1, "i"]]),
                    "doca_gpu_dev_verbs_qp": (19, [
                        ["sq_rsvd_index", 0, 8, "i"], ["reserved1", 8, 3, "a"],
                        ["either", 11, 8, "u"]])})

    def test_a_wheel_without_debug_information_says_so(self):
        text = self.run_tool(self.make_wheel("-s"), status=1)
        self.assertIn("NCCL 3.1.4 takes ncclGinPlugin_v14\n    not served: ncclGinPlugin_v15\n"
                      "    ncclGin_v14_t: no debug information says how it is laid out\n", text)
        self.assertIn("ncclGinGdakiGPUContext.use_mcst at 24, 1 B", text)
        self.assertIn("ncclGinGdakiMemHandle is not there", text)

    def test_what_cannot_be_read_is_named(self):
        broken = self.folder / "broken.whl"
        broken.write_bytes(b"no wheel")
        for path in (broken, self.folder, self.folder / "missing.whl"):
            self.assertIn(path.name, self.run_tool(path, status=2))
        facts = self.folder / "facts.json"
        facts.write_text(json.dumps({"releases": {NEWEST: {}}, "structs": []}))
        self.assertIn("'asks'", self.run_tool("--facts", facts, status=2))

    def test_arguments_are_compared_by_their_places(self):
        self.assertEqual(layouts.pointed_to("(i4: *, *config, **, **more)"),
                         ["", "config", "", "more"])

    def test_bits_are_fields(self):
        library = self.folder / "bits.so"
        subprocess.run(["g++", "-g", "-gdwarf-5", "-shared", "-fPIC", "-x", "c++", "-", "-o",
                        str(library)], text=True, check=True,
                       input="struct Bits { char first; unsigned a : 3, b : 14; static int no; } x;")
        self.assertEqual(layouts.read(library.read_bytes(), {"Bits"})["Bits"]["fields"], [
            ["first", 0, 1, "i"], ["a", 1, 1, "b"], ["b", 1, 3, "b"]])


if __name__ == "__main__":
    unittest.main()
