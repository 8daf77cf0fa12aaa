"""What an NCCL asks of plugins: which tables it looks up, and how their structs and those that its
kernels read are laid out.

    facts = of_release("nvidia_nccl_cu13-2.32.3-...whl")
    {"version": "2.32.3", "asks": {"ncclGinPlugin": [13, 14], ...}, "gdaki": 200,
     "structs": {"ncclGin_v14_t": {"size": 136, "fields": [...]}, ...}}       (layouts.py)

Tables come from the library: the symbols from its strings, the structs from its debug information,
which NCCL's releases have.  What kernels read is compiled from the device headers, as kernels are,
and taken from the library only where there are no headers.  Nothing of the library is run.
"""
import pathlib
import re
import struct
import subprocess
import tempfile
import zipfile

import dwarf
import layouts

FAMILIES = ("ncclNetPlugin", "ncclGinPlugin", "ncclRmaPlugin", "ncclProfiler")
TABLES = rb"(nccl(?:Net|Gin|Rma|Profiler)_v\d+_t)\0"  # tails of other names, too
READ_BY_KERNELS = ("doca_gpu_dev_verbs_", "ncclGinGdaki")
KERNELS = rb"(doca_gpu_dev_verbs_qp|ncclGinGdaki(?:GPUContext|MemHandle)(?:_v\d+)?)\b"
GDAKI = "nccl_device/gin/gdaki/"
DEVICE_HEADERS = (GDAKI + "gin_gdaki_device_host_common.h",
                  GDAKI + "doca_gpunetio/common/doca_gpunetio_verbs_dev.h")


def compile_structs(headers, folder, names):
    """{name: layout} of structs that C++ headers below a folder define."""
    with tempfile.TemporaryDirectory() as scratch:
        library = pathlib.Path(scratch, "structs.so")
        includes = ["<cstddef>", "<cstdint>", *(f'"{header}"' for header in headers)]
        done = subprocess.run(
            ["g++", "-std=c++20", "-w", "-g", "-fno-eliminate-unused-debug-types", "-shared",
             "-fPIC", "-nostdlib", "-I.", "-x", "c++", "-", "-o", str(library)],
            cwd=folder, input="".join(f"#include {header}\n" for header in includes),
            capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error:" in line]
            raise ValueError(f"headers in {folder}: {(errors or ['g++ failed'])[0]}")
        return layouts.read(library.read_bytes(), names)


def asked(strings):
    """{symbol without its number: the numbers that the library looks up}."""
    found = {}
    for family in FAMILIES:
        pattern = rb"\0" + family.encode() + rb"_v(\d+)(?=\0)"
        found[family] = sorted({int(n) for n in re.findall(pattern, b"\0" + strings)})
    return found


def of_library(data):
    """Tables, and structs as far as there is debug information."""
    sections = dwarf.sections(data, (".rodata", ".debug_str"))
    names = sections.get(".debug_str", b"")
    wanted = {name.decode() for pattern in (TABLES, KERNELS) for name in re.findall(pattern, names)}
    return {"asks": asked(sections.get(".rodata", b"")),
            "structs": layouts.read(data, wanted) if wanted else {}}


def of_headers(include):
    """Version, the number of the device structs, and those structs."""
    words = dict(re.findall(r"#define (NCCL_MAJOR|NCCL_MINOR|NCCL_PATCH) +(\d+)",
                            (include / "nccl.h").read_text(encoding="utf-8")))
    facts = {"version": ".".join(words[f"NCCL_{part}"] for part in ("MAJOR", "MINOR", "PATCH")),
             "gdaki": None, "structs": {}}
    if not all((include / header).is_file() for header in DEVICE_HEADERS):
        return facts  # 2.28.7's wheel leaves one out
    text = "\0".join((include / header).read_text(encoding="utf-8") for header in DEVICE_HEADERS)
    number = re.search(r"#define NCCL_GIN_GDAKI_VERSION +(\d+)", text)
    facts["gdaki"] = int(number[1]) if number else None
    names = set(re.findall(KERNELS.decode(), text))
    facts["structs"] = compile_structs(DEVICE_HEADERS, include, names)
    return facts


def of_folder(root):
    """Of a folder that has libnccl.so.2 and nccl.h somewhere below it."""
    library = next(iter(sorted(root.rglob("libnccl.so.2"))), None)
    header = next(iter(sorted(root.rglob("nccl.h"))), None)
    if library is None or header is None:
        raise ValueError(f"no {'libnccl.so.2' if library is None else 'nccl.h'} in it")
    facts = of_headers(header.parent)
    of_binary = of_library(library.read_bytes())
    return {**facts, "asks": of_binary["asks"],
            "structs": {**of_binary["structs"], **facts["structs"]}}


def unpacked(path, folder):
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist()
                                  if "/include/" in name or name.endswith("/libnccl.so.2")])
    return folder


def of_release(path):
    """Of a wheel, or of a folder as wheels and packages unpack to.  ValueError names the path."""
    try:
        if path.is_dir():
            return of_folder(path)
        with tempfile.TemporaryDirectory() as scratch:
            return of_folder(unpacked(path, pathlib.Path(scratch)))
    except (ValueError, KeyError, IndexError, struct.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from error
