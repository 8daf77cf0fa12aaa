"""A machine with one of every trouble, as a folder with sys, proc and dev: for twinpath-topo.

Two sockets.  Switch A on socket 0: GPU0, mlx5_0 (its port redirects peer-to-peer traffic by ACS),
mlx5_1 (port down).  Behind a root port of socket 0: GPU1, on 8 of 16 lanes.  Switch B on socket 1:
GPU2, mlx5_2 (RoCE with an MTU of 1500 and virtual functions), mlx5_3 (BlueField with the default
route: management).  Socket 1 also has GPU3, whose kernel tells no NUMA node for it.
"""
import os
import struct

GPU, HCA, BRIDGE = "0x030200", "0x020700", "0x060400"
A = "pci0000:10/0000:10:01.0/0000:11:00.0"
B = "pci0000:80/0000:80:01.0/0000:81:00.0"
BUSES = {"0000:10:01.0": (0x11, 0x15), "0000:11:00.0": (0x12, 0x15), "0000:12:00.0": (0x13, 0x13),
         "0000:12:01.0": (0x14, 0x14), "0000:12:02.0": (0x15, 0x15), "0000:10:02.0": (0x20, 0x20),
         "0000:80:01.0": (0x81, 0x85), "0000:81:00.0": (0x82, 0x85), "0000:82:00.0": (0x83, 0x83),
         "0000:82:01.0": (0x84, 0x84), "0000:82:02.0": (0x85, 0x85), "0000:c0:01.0": (0xc1, 0xc1)}


class Machine:
    def __init__(self, root):
        self.root = root
        self.known = set()

    def write(self, path, text):
        path = self.root + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(text if isinstance(text, bytes) else (text + "\n").encode())

    def link(self, path, target):
        full, target = self.root + path, self.root + target
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(os.path.relpath(target, os.path.dirname(full)), full)

    def function(self, path, numa, kind, vendor, device, port=None, acs=None, lanes=16, **files):
        above = os.path.dirname(path)
        if "/" in above and above not in self.known:
            depth = above.count("/")
            self.function(above, numa, BRIDGE, "0x10b5", "0x9797",
                          port=4 if depth == 1 else 5 if depth % 2 == 0 else 6)
        if path in self.known:
            return
        self.known.add(path)
        bus = os.path.basename(path)
        folder = "/sys/devices/" + path
        values = {"class": kind, "vendor": vendor, "device": device, "numa_node": str(numa),
                  "subsystem_vendor": vendor, "subsystem_device": "0x0001",
                  "local_cpus": {0: "00000003", 1: "0000000c"}.get(numa, "0000000f"),
                  "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe",
                  "current_link_width": str(lanes), "max_link_width": "16", **files}
        for name, text in values.items():
            self.write(f"{folder}/{name}", text)
        config = bytearray(4096)
        struct.pack_into("<HHHHBBBB", config, 0, int(vendor, 16), int(device, 16), 0, 0x10, 0, 0,
                         int(kind, 16) >> 8 & 0xff, int(kind, 16) >> 16)
        config[0x34] = 0x40
        struct.pack_into("<BBH", config, 0x40, 0x10, 0, (port or 0) << 4 | 2)
        struct.pack_into("<H", config, 0x52, 5 | lanes << 4)
        if bus in BUSES:
            config[0x0e] = 1
            config[0x18] = int(bus.split(":")[1], 16)
            config[0x19], config[0x1a] = BUSES[bus]
        if port == 6:  # ports of switches have Access Control Services
            struct.pack_into("<I", config, 0x100, 0x0001000d)
            struct.pack_into("<H", config, 0x106, acs or 0)
        if kind == HCA:  # the serial number that a dump must not have
            struct.pack_into("<I8s", config, 0x100, 0x00010003, b"SERIALNO")
        self.write(folder + "/config", bytes(config))
        self.link("/sys/bus/pci/devices/" + bus, folder)

    def gpu(self, path, numa, **more):
        self.function(path, numa, GPU, "0x10de", "0x2330", **more)

    def hca(self, path, numa, name, guid, device="0x1021", state="4: ACTIVE", rate=400,
            layer="InfiniBand", netdev=None, **more):
        self.function(path, numa, HCA, "0x15b3", device, **more)
        folder = f"/sys/devices/{path}/infiniband/{name}"
        port = folder + "/ports/1"
        self.write(folder + "/node_guid", guid)
        self.write(folder + "/sys_image_guid", guid)
        self.write(folder + "/fw_ver", "28.40.1000")
        self.write(port + "/state", state)
        self.write(port + "/rate", f"{rate} Gb/sec (4X NDR)")
        self.write(port + "/link_layer", layer)
        self.write(port + "/lid", "0x7" if layer == "InfiniBand" else "0x0")
        self.write(port + "/gids/0", "fe80:0000:0000:0000:" + guid)
        if netdev:
            name_of_net, mtu = netdev
            self.write(port + "/gid_attrs/ndevs/0", name_of_net)
            self.write(f"/sys/class/net/{name_of_net}/mtu", str(mtu))
        self.link(folder + "/device", "/sys/devices/" + path)
        self.link("/sys/class/infiniband/" + name, folder)

    def host(self):
        system = "/sys/devices/system"
        for node in (0, 1):
            self.write(f"{system}/node/node{node}/cpumap", f"{3 << 2 * node:08x}")
        self.write(system + "/node/online", "0-1")
        for cpu in range(4):
            topology = f"{system}/cpu/cpu{cpu}/topology"
            self.write(topology + "/physical_package_id", str(cpu // 2))
            self.write(topology + "/core_id", str(cpu))
            self.write(topology + "/core_siblings", f"{3 << cpu // 2 * 2:08x}")
            self.write(topology + "/thread_siblings", f"{1 << cpu:08x}")
        self.write(system + "/cpu/online", "0-3")
        self.write(system + "/cpu/present", "0-3")
        self.write("/proc/cpuinfo", "\n\n".join(
            f"processor\t: {c}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
            f"model name\t: Made up CPU\nflags\t\t: fpu sse2\nphysical id\t: {c // 2}\n"
            f"Serial\t\t: SERIALNO" for c in range(4)))
        self.write("/proc/sys/kernel/hostname", "troubled")
        self.write("/proc/sys/kernel/osrelease", "6.1.0-made-up")
        self.write("/proc/modules", "nvidia 1 1 - Live 0x0\nmlx5_core 1 1 - Live 0x0")
        self.write("/proc/mounts", "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0")
        self.write("/proc/driver/nvidia/version",
                   "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15")
        self.write("/proc/driver/nvidia/params", 'RegistryDwords: ""\nGrdmaPciTopoCheckOverride: 0')
        self.write("/sys/module/nvidia/version", "550.54.15")
        self.write("/proc/self/limits", "Max locked memory         8388608              8388608"
                                        "              bytes")
        self.write("/proc/net/route", "Iface\tDestination\tGateway\nbf0\t00000000\t0101A8C0")
        self.write("/sys/class/iommu/dmar0/name", "dmar0")
        self.write("/dev/infiniband/uverbs0", "")


def troubled(root):
    m = Machine(root)
    m.host()
    m.function(A + "/0000:12:01.0", 0, BRIDGE, "0x10b5", "0x9797", port=6, acs=0x1d)
    m.gpu(A + "/0000:12:00.0/0000:13:00.0", 0)
    m.hca(A + "/0000:12:01.0/0000:14:00.0", 0, "mlx5_0", "0c42:a103:0000:0010")
    m.hca(A + "/0000:12:02.0/0000:15:00.0", 0, "mlx5_1", "0c42:a103:0000:0020", state="1: DOWN")
    m.gpu("pci0000:10/0000:10:02.0/0000:20:00.0", 0, lanes=8)
    m.gpu(B + "/0000:82:00.0/0000:83:00.0", 1)
    m.hca(B + "/0000:82:01.0/0000:84:00.0", 1, "mlx5_2", "0c42:a103:0000:0030", layer="Ethernet",
          netdev=("eth2", 1500), sriov_numvfs="4")
    m.hca(B + "/0000:82:02.0/0000:85:00.0", 1, "mlx5_3", "0c42:a103:0000:0040", device="0xa2dc",
          rate=100, layer="Ethernet", netdev=("bf0", 9000))
    m.gpu("pci0000:c0/0000:c0:01.0/0000:c1:00.0", -1)
    return root
