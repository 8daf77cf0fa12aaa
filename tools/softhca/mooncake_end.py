"""An end of the case of Mooncake's transfer engine in tools/softhca/check.

usage: mooncake_end.py serve | mooncake_end.py use HOST:PORT ADDRESS

serve   registers BYTES of a pattern, prints "at HOST:PORT ADDRESS", and stays until it is ended
use     reads them, overwrites them by others, reads those, and compares all of it
"""
import ctypes
import signal
import sys

from mooncake.engine import TransferEngine

BYTES = 3 * 2**20 + 5


def pattern(seed):
    return bytes((i * 31 + i // 251 + seed) & 0xFF for i in range(BYTES))


def engine_at(device):
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) != 0:
        sys.exit(f"the engine does not start on {device}")
    return engine


def registered(engine, data):
    memory = ctypes.create_string_buffer(data, BYTES)
    if engine.register_memory(ctypes.addressof(memory), BYTES) != 0:
        sys.exit("memory is not registered")
    return memory


def serve():
    engine = engine_at("soft0")
    memory = registered(engine, pattern(1))
    print(f"at 127.0.0.1:{engine.get_rpc_port()} {ctypes.addressof(memory)}", flush=True)
    signal.pause()


def use(peer, address):
    engine = engine_at("soft1")
    memory = registered(engine, bytes(BYTES))
    here = ctypes.addressof(memory)

    def step(what, done, seed):
        if done != 0:
            sys.exit(f"{what} fails: {done}")
        if memory.raw != pattern(seed):
            sys.exit(f"{what}: the bytes are others")

    step("a read", engine.transfer_sync_read(peer, here, address, BYTES), 1)
    memory.raw = pattern(2)
    step("a write", engine.transfer_sync_write(peer, here, address, BYTES), 2)
    memory.raw = bytes(BYTES)
    step("a read of what was written", engine.transfer_sync_read(peer, here, address, BYTES), 2)
    print("all bytes are right")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        use(sys.argv[2], int(sys.argv[3]))
