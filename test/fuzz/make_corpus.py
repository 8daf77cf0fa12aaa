#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets (one file an input) into FOLDER/<target>/.

Text targets only need samples of their syntax.  Binary ones get frames built here from the
layout that proxy/wire/handshake.h documents; where the layout moves on, they stay valid as foreign
input.  Usage: make_corpus.py FOLDER
"""
import pathlib
import struct
import sys
import zlib

TEXTS = {
    "hca_filter": ["mlx5_0", "mlx5_0:1,mlx5_1:2", "^mlx5_3", "=mlx5_0:1", "^=a:1,b,c:9\nb", "::,,^"],
    "placement_record": ["GPU 0000:17:00.0 HCA mlx5_0 CLASS PIX READ 12.5 # near\nHCA mlx5_4 IGNORE\n",
                         "GPU * HCA * CLASS PHB WRITE 24\nHCA mlx5_0 RAIL 3", "GPU HCA\n\x1b\nHCA a RAIL -1"],
    "device_spec": ["4", "soft0", "soft0,speed=400,pci=0000:17:00.0,soft1,speed=200,ports=2",
                    "soft0,state=down,mtu=1024", "fail_send=3,delay_us=10", "x,=,speed=-1"],
    "nccl_xml": [
        "<system version='1'><!-- c --><cpu numaid='0' arch='x86_64' affinity='0f'>"
        "<pci busid='0000:11:00.0' class='0x060400' link_speed='32 GT/s' link_width='16'>"
        "<pci busid='0000:12:00.0' class='0x030200'><gpu dev='0' sm='90' gdr='1'><c2c count='1'/>"
        "</gpu></pci><pci busid='0000:13:00.0' class='0x080100' vendor='0x15b3'><nic>"
        "<net name='mlx5_0_dma' port='1' speed='400000' guid='0x12'/></nic></pci></pci></cpu></system>",
        "<system><cpu host_hash='0x1' numaid='-1'><pci busid='1:00.0' class='0x030200'/></cpu>"
        "<cpu host_hash='0x2' numaid='1'><pci busid='1:00.0' class='0x030200'/>"
        "<nic><net name='&lt;a&gt;'/></nic></cpu></system>",
        "<system><cpu numaid='0'><pci busid='0:12:00.0' class='08030200'><gpu deAv='0'/></pci></cpu></system>",
        "<system><cpu numaid='0'><pci busid='ffff:ff:01.0' class='0x060400'><pci busid=",
        "<topology version='2.0'/>"],
    "hwloc_xml": [
        "<?xml version='1.0'?><!DOCTYPE topology SYSTEM 'hwloc2.dtd'><topology version='2.0'>"
        "<object type='Machine' cpuset='0xf' os_index='0'><info name='HostName' value='&lt;a'/>"
        "<object type='Package' cpuset='0x3'><object type='NUMANode' os_index='0' cpuset='0x3'/>"
        "<object type='L3Cache'><object type='PU' os_index='0'/></object>"
        "<object type='Bridge' bridge_type='0-1' depth='0' bridge_pci='0000:[10-1f]'>"
        "<object type='Bridge' bridge_type='1-1' bridge_pci='0000:[11-1f]' pci_busid='0000:10:01.0' "
        "pci_type='0604 [1000:c010] [0000:0000] 00'><object type='PCIDev' pci_busid='0000:11:00.0' "
        "pci_type='0302 [10de:2330] [0000:0000] 00' pci_link_speed='63.015385'/>"
        "<object type='PCIDev' pci_busid='0000:12:00.0' pci_type='0207 [15b3:1021] [0000:0000] 00'>"
        "<object type='OSDev' osdev_type='3' name='mlx5_0'><info name='Port1State' value='4'/>"
        "<info name='Port1LID' value='0x1'/><info name='NodeGUID' value='1:2:3:4'/></object></object>"
        "</object></object></object></object></topology>",
        "<topology><object type='Machine' cpuset='0xf...f,,0x3'><object type='NUMANode' os_index='0' "
        "cpuset='0x1'><object type='Socket' cpuset='0x1'><object type='PU'/></object></object>"
        "<object type='NUMANode' os_index='1' cpuset='0x2'><object type='PU'/><object type='PCIDev' "
        "pci_busid='1:00.0' pci_type='0801 [15b3:2100] [0000:0000] 00'/></object></object></topology>",
        "<topology version='3.0'></topology>", "<system/>"],
}
OPTION_VALUES = ["auto", "soft", "verbs", "1", "-1", "64k", "2g", "yes", "AF_INET6", "=mlx5_0:1",
                 "18446744073709551616", "0x1f", "1.5", " 7", "fd00::/8", "soft0,speed=400"]


def text(s):
    return struct.pack("<H", len(s)) + s.encode()


def hello(rails):
    body = text("0.1.0") + text("host") + struct.pack("<I", 4711) + text("soft0")
    body += struct.pack("<HIB", 1, 0, rails)
    for i in range(rails):
        body += text(f"mlx5_{i}:1") + struct.pack("<HB16sBBI", 0, 5, bytes(range(16)), 3, 1, 400000)
    return body + struct.pack("<B", min(rails - 1, 2)) + text("GPU0")


def fence(queues, ranges):
    body = struct.pack("<IQQ4QI", 3, 1000, 1200, 1, 2, 3, 4, (1 << queues) - 1)
    body += b"".join(struct.pack("<II", 256 + i, i) for i in range(queues)) + struct.pack("<B", 1)
    body += text("mlx5_0:1") + struct.pack("<HB16sBBI", 0, 5, bytes(range(16)), 3, 1, 400000)
    body += struct.pack("<BH", 2, ranges)
    return body + b"".join(struct.pack("<QQII", 4096 * i, 4096, i, i) for i in range(ranges))


def queues(count):
    body = struct.pack("<B", count) + b"".join(struct.pack("<II", 256 + i, 99 * i) for i in range(count))
    return body + struct.pack("<QB", 0x7F0012345000, 2) + struct.pack("<II", 17, 18)


def frame(kind, body):
    return struct.pack("<IHHI16s", 0x46505457, 1, kind, len(body), b"n" * 16) + body


def record(wish, distance, limit):
    body = struct.pack("<HBBBBBBQQ", 0x5054, 1, 64, 0, 1, 2, wish, 11, 22)
    body += struct.pack("<BBHIBBBBBBBB", distance, distance, 4, 0x3ff, limit, 16, 2, 9, 2, 2, 36, 90)
    body += struct.pack("<HHHHHHQ", 524, 800, 400, 630, 0, 0, 0)
    return body + struct.pack("<I", zlib.crc32(body))


def wqe(opcode, segments, body):
    """WQE 5 of queue 0x123, then the poison of an empty slot."""
    control = struct.pack(">IIII", 5 << 8 | opcode, 0x123 << 8 | segments, 8, 0)
    return (control + body).ljust(64, b"\0") + b"\xa5" * 8


def wqes():
    data, table, sink = 0x100, 0x200, 0x300  # the keys that wqe_decode_fuzz.cc makes
    remote, atomic = struct.pack(">QII", 64, data, 0), struct.pack(">QII", 64, table, 0)
    local = struct.pack(">IIQ", 256, data, 64)
    return [wqe(0x00, 1, b""), wqe(0x08, 3, remote + local), wqe(0x10, 3, remote + local),
            wqe(0x08, 3, remote + struct.pack(">I", 1 << 31 | 8) + b"inlined!"),
            wqe(0x08, 4, remote + struct.pack(">I", 1 << 31 | 28) + b"inlined!" * 3 + b"1234"),
            wqe(0x12, 4, atomic + struct.pack(">QQIIQ", 1, 1, 8, sink, 0)),
            wqe(0x0f, 2, struct.pack(">QII", 0, 7, 0x45)),
            wqe(0x23, 2, struct.pack(">IIQ", 1, sink, 0))]


def main():
    root = pathlib.Path(sys.argv[1])
    inputs = {name: [s.encode() for s in samples] for name, samples in TEXTS.items()}
    inputs["options"] = [bytes([i]) + v.encode() for i, v in enumerate(OPTION_VALUES * 3)]
    bodies = [hello(1), hello(8), fence(1, 0), fence(3, 2), queues(1), queues(32), b"other version\n\x1b[31m"]
    inputs["handshake"] = bodies + [frame(1 + i % 4, b) for i, b in enumerate(bodies)]
    inputs["handle"] = [bytes(128), struct.pack("<IHH16sHH16sI", 0x48505457, 1, 0, b"n" * 16, 2, 4242,
                                                b"\x7f\0\0\1" + bytes(12), 0) + bytes(76)]
    inputs["placement_record"] += [record(w, d, r) for w in (0, 4) for d in (1, 8) for r in (0, 255)]
    inputs["wqe_decode"] = wqes()
    for name, samples in inputs.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, sample in enumerate(samples):
            (folder / f"seed{i:03}").write_bytes(sample)


if __name__ == "__main__":
    main()
