#!/usr/bin/env python3
"""What an adapter and its kernel say by themselves, raw, as JSON: pages of mlx5 capabilities, QUERY_QP of a
queue pair that libibverbs made, addresses of doorbell pages, and what registrations are refused.

Needs one port, no second host and no GPU.  By libibverbs and libmlx5 alone, nothing of Twinpath."""
import ctypes
import errno
import json
import mmap
import sys

POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
PAGES = (0x0, 0x3, 0x4, 0x20)  # general, atomic, RoCE, general 2
HEADER, CAPABILITIES, QUERY_QP = 16, 16 + 4096, 24 + 512
LOCAL_WRITE, REMOTE_WRITE = 1, 2
RC = 2
UAR_BLUEFLAME, UAR_NC = 0, 1


def library(name, functions):
    """Its functions that are there, the others None."""
    lib = ctypes.CDLL(name, use_errno=True)
    found = {}
    for function, result, arguments in functions:
        try:
            found[function] = getattr(lib, function)
        except AttributeError:
            found[function] = None
            continue
        found[function].restype, found[function].argtypes = result, arguments
    return found


class QpCap(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("send_wr", "recv_wr", "send_sge", "recv_sge", "inline")]


class QpInit(ctypes.Structure):
    _fields_ = [("context", POINTER), ("send_cq", POINTER), ("recv_cq", POINTER), ("srq", POINTER),
                ("cap", QpCap), ("type", INT), ("signal_all", INT)]


class OpenAttr(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint32), ("comp_mask", ctypes.c_uint64)]


def named(error):
    return errno.errorcode.get(error, str(error))


class Verbs:
    def __init__(self):
        self.f = library("libibverbs.so.1", [
            ("ibv_get_device_list", ctypes.POINTER(POINTER), [ctypes.POINTER(INT)]),
            ("ibv_get_device_name", ctypes.c_char_p, [POINTER]),
            ("ibv_open_device", POINTER, [POINTER]), ("ibv_close_device", INT, [POINTER]),
            ("ibv_alloc_pd", POINTER, [POINTER]), ("ibv_dealloc_pd", INT, [POINTER]),
            ("ibv_create_cq", POINTER, [POINTER, INT, POINTER, POINTER, INT]),
            ("ibv_destroy_cq", INT, [POINTER]), ("ibv_create_qp", POINTER, [POINTER, POINTER]),
            ("ibv_destroy_qp", INT, [POINTER]), ("ibv_dereg_mr", INT, [POINTER]),
            ("ibv_reg_mr", POINTER, [POINTER, POINTER, SIZE, INT]),
            ("ibv_reg_mr_iova2", POINTER, [POINTER, POINTER, SIZE, ctypes.c_uint64, ctypes.c_uint])])
        try:
            self.mlx5 = library("libmlx5.so.1", [
                ("mlx5dv_is_supported", ctypes.c_bool, [POINTER]),
                ("mlx5dv_open_device", POINTER, [POINTER, POINTER]),
                ("mlx5dv_devx_general_cmd", INT, [POINTER, POINTER, SIZE, POINTER, SIZE]),
                ("mlx5dv_devx_qp_query", INT, [POINTER, POINTER, SIZE, POINTER, SIZE]),
                ("mlx5dv_devx_alloc_uar", POINTER, [POINTER, ctypes.c_uint32]),
                ("mlx5dv_devx_free_uar", None, [POINTER])])
        except OSError:
            self.mlx5 = {}

    def devices(self):
        n = INT(0)
        found = self.f["ibv_get_device_list"](ctypes.byref(n))
        return [found[i] for i in range(n.value)]

    def registration(self, pd, address, length, access, iova=None):
        """"ok", or the name of its errno."""
        ctypes.set_errno(0)
        if iova is None:
            mr = self.f["ibv_reg_mr"](pd, address, length, access)
        else:
            mr = self.f["ibv_reg_mr_iova2"](pd, address, length, iova, access)
        if not mr:
            return named(ctypes.get_errno())
        self.f["ibv_dereg_mr"](mr)
        return "ok"

    def registrations(self, pd):
        page = mmap.PAGESIZE
        memory = mmap.mmap(-1, 4 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.munmap.argtypes = POINTER, [POINTER, SIZE]
        libc.mmap.argtypes = [POINTER, SIZE, INT, INT, INT, ctypes.c_long]
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        gone = libc.mmap(None, page, mmap.PROT_READ, private, -1, 0)
        libc.munmap(gone, page)
        unwritable = libc.mmap(None, page, mmap.PROT_READ, private, -1, 0)
        return {"page_bytes": page,
                "whole_page": self.registration(pd, start, page, LOCAL_WRITE),
                "iova_same_offset": self.registration(pd, start + 64, 64, LOCAL_WRITE, 64),
                "iova_other_offset": self.registration(pd, start + 64, 64, LOCAL_WRITE, 0),
                "remote_without_local_write": self.registration(pd, start, page, REMOTE_WRITE),
                "unmapped": self.registration(pd, gone, page, LOCAL_WRITE),
                "read_only": self.registration(pd, unwritable, page, LOCAL_WRITE)}

    def command(self, send, bytes_in, bytes_out):
        question = ctypes.create_string_buffer(bytes_in, len(bytes_in))
        answer = ctypes.create_string_buffer(bytes_out)
        result = send(question, len(bytes_in), answer, bytes_out)
        return {"result": result, "out": answer.raw.hex()}

    def queue_pair(self, context, pd):
        """QUERY_QP of one that was just made."""
        query = self.mlx5.get("mlx5dv_devx_qp_query")
        cq = self.f["ibv_create_cq"](context, 16, None, None, 0)
        init = QpInit(send_cq=cq, recv_cq=cq, cap=QpCap(16, 16, 1, 1, 0), type=RC)
        qp = self.f["ibv_create_qp"](pd, ctypes.byref(init)) if cq else None
        if not qp:
            return {"result": ctypes.get_errno(), "out": ""}
        # struct ibv_qp: context, qp_context, pd, two CQs, SRQ, handle, then qp_num.
        number = ctypes.cast(qp, ctypes.POINTER(ctypes.c_uint32))[13]
        asked = bytes([0x05, 0x0b, 0, 0, 0, 0, 0, 0]) + number.to_bytes(4, "big") + bytes(4)
        got = self.command(lambda *a: query(qp, *a), asked, QUERY_QP) if query else None
        self.f["ibv_destroy_qp"](qp)
        self.f["ibv_destroy_cq"](cq)
        return got

    def doorbells(self, context):
        """Where three pages of each kind lie in this process, as long as all are held."""
        out = {}
        for name, kind in ("nc", UAR_NC), ("blueflame", UAR_BLUEFLAME):
            pages = []
            for _ in range(3):
                ctypes.set_errno(0)
                pages.append(self.mlx5["mlx5dv_devx_alloc_uar"](context, kind)
                             or named(ctypes.get_errno()))
            out[name] = [hex(ctypes.cast(p, ctypes.POINTER(ctypes.c_uint64))[0])
                         if isinstance(p, int) else p for p in pages]
            for p in pages:
                if isinstance(p, int):
                    self.mlx5["mlx5dv_devx_free_uar"](p)
        return out

    def look(self, device):
        seen = {"name": self.f["ibv_get_device_name"](device).decode()}
        is_mlx5 = self.mlx5 and self.mlx5["mlx5dv_is_supported"](device)
        ctypes.set_errno(0)
        if is_mlx5:
            context = self.mlx5["mlx5dv_open_device"](device, ctypes.byref(OpenAttr(flags=1)))
        else:
            context = self.f["ibv_open_device"](device)
        if not context:
            seen["error"] = "cannot be opened: " + named(ctypes.get_errno())
            return seen
        pd = self.f["ibv_alloc_pd"](context)
        if not pd:
            seen["error"] = "no protection domain: " + named(ctypes.get_errno())
            return seen
        seen["registrations"] = self.registrations(pd)
        if is_mlx5:
            send = self.mlx5["mlx5dv_devx_general_cmd"]
            seen["capabilities"] = {
                f"{page:#x}": self.command(lambda *a: send(context, *a),
                                           bytes([1, 0, 0, 0, 0, 0, 0, page << 1 | 1]) + bytes(8),
                                           CAPABILITIES) for page in PAGES}
            seen["queue_pair"] = self.queue_pair(context, pd)
            seen["doorbells"] = self.doorbells(context)
        self.f["ibv_dealloc_pd"](pd)
        self.f["ibv_close_device"](context)
        return seen


def main():
    try:
        verbs = Verbs()
    except OSError as error:
        sys.exit(f"libibverbs cannot be opened: {error}; install rdma-core")
    seen = [verbs.look(d) for d in verbs.devices()]
    json.dump({"schema": "bringup-evidence/1", "devices": seen}, sys.stdout, indent=1)
    print()
    if not seen:
        print("libibverbs finds no adapter: see ibv_devices and lsmod", file=sys.stderr)
    return 0 if seen and not any("error" in d for d in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
