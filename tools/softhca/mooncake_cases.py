"""Cases of tools/softhca/check about Mooncake's transfer engine: all bytes of transfers, and its benchmark,
whose far end is passive.  Its wheel without CUDA (mooncake-transfer-engine-non-cuda) is installed, or
unpacked in $SOFTHCA_MOONCAKE."""
import importlib.util
import os
import pathlib
import re
import sys
import time

from harness import HERE, Program, Skipped, expect, last_line

UNPACKED = os.environ.get("SOFTHCA_MOONCAKE")


def package():
    """The folder of its Python package."""
    if UNPACKED:
        return pathlib.Path(UNPACKED) / "mooncake"
    found = importlib.util.find_spec("mooncake")
    if found is None or not found.submodule_search_locations:
        raise Skipped("neither installed (pip: mooncake-transfer-engine-non-cuda) nor unpacked in $SOFTHCA_MOONCAKE")
    return pathlib.Path(found.submodule_search_locations[0])


def pair(bench, target, told, initiator):
    """Output of `initiator`, a function of what `told` finds in the output of `target`."""
    job, options = bench.job(), ("--files", "--hcas", "soft0,soft1")
    env = {"PYTHONPATH": str(package().parent)}
    far = Program(bench.build, job, target, options, env)
    near = None
    try:
        end = time.monotonic() + 30
        while not (at := re.search(told, far.output(), re.M)):
            if far.process.poll() is not None:
                # Libraries of the distribution that the wheel does not bring.
                if "error while loading shared libraries" in far.output() or "ImportError" in far.output():
                    raise Skipped(last_line(far.output()))
                expect(False, f"the target ended with status {far.process.returncode}: {last_line(far.output())}")
            expect(time.monotonic() < end, f"the target is not ready: {last_line(far.output())}")
            time.sleep(0.05)
        near = Program(bench.build, job, initiator(*at.groups()), options, env)
        got = near.finish()
        expect(got == 0, f"initiator exit status {got}; last words: {last_line(near.output())}")
        for text in (near.output(), far.output()):
            wrong = re.search(r"^[EF]\d{4} .*$", text, re.M)  # what glog calls an error
            expect(wrong is None, wrong and wrong[0])
        return near.output()
    finally:
        far.stop()
        if near is not None:
            near.stop()


def all_bytes(bench):
    program = (sys.executable, HERE / "mooncake_end.py")
    text = pair(bench, (*program, "serve"), r"^at (\S+) (\d+)$", lambda at, address: (*program, "use", at, address))
    expect("all bytes are right" in text, last_line(text))


def benchmark(bench, operation):
    program = package() / "transfer_engine_bench"
    expect(program.is_file(), f"{program} is missing")
    program.chmod(0o755)  # unpacking forgets it
    common = (program, "-metadata_server", "P2PHANDSHAKE", "-local_server_name", "127.0.0.1", "-threads", 2,
              "-batch_size", 16, "-block_size", 65536, "-buffer_size", 2**27)
    text = pair(bench, (*common, "-mode", "target", "-device_name", "soft0"), r"listening on (\S+)",
                lambda at: (*common, "-segment_id", at, "-device_name", "soft1", "-duration", 1, "-operation", operation))
    done = re.search(r"batch count (\d+), throughput (\S+) GB/s", text)
    expect(done and int(done[1]) > 0, last_line(text))
    return f"{done[2]} GB/s"


def cases(bench):
    yield "Mooncake's transfer engine, all bytes", lambda: all_bytes(bench)
    for operation in ("read", "write"):
        yield f"Mooncake's transfer_engine_bench, {operation}", lambda o=operation: benchmark(bench, o)
