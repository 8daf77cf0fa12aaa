"""Which versioned libibverbs symbols programs ask for, and whether a library has them."""
import pathlib
import re
import shutil
import subprocess

from harness import Failed, Skipped

# What NCCL's InfiniBand transport looks up by dlvsym (NCCL 2.28 to 2.30, src/misc/ibvsymbols.cc):
# without the first group it has no network; the second it can do without.
NCCL = [(name, "IBVERBS_1.1") for name in (
    "ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device "
    "ibv_close_device ibv_get_async_event ibv_ack_async_event ibv_query_device ibv_query_port "
    "ibv_query_gid ibv_query_qp ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr ibv_create_cq "
    "ibv_destroy_cq ibv_create_qp ibv_modify_qp ibv_destroy_qp ibv_fork_init "
    "ibv_event_type_str").split()]
NCCL_OPTIONAL = [("ibv_reg_mr_iova2", "IBVERBS_1.8"), ("ibv_reg_dmabuf_mr", "IBVERBS_1.12"),
                 ("ibv_query_ece", "IBVERBS_1.10"), ("ibv_set_ece", "IBVERBS_1.10")]

_ENTRY = re.compile(r"\s([A-Za-z])\s(\w+)@@?(IBVERBS_\w+(?:\.\d+)?)$")


def _entries(file):
    if shutil.which("nm") is None:
        raise Skipped("nm is not installed (Debian: binutils)")
    run = subprocess.run(["nm", "-D", "--with-symbol-versions", str(file)], capture_output=True,
                         text=True, check=False)
    if run.returncode != 0:
        raise Failed(f"nm {file}: {run.stderr.strip()}")
    for line in run.stdout.splitlines():
        found = _ENTRY.search(" " + line)
        if found:
            yield found[1], found[2], found[3]


def exported(library):
    return {(name, version) for kind, name, version in _entries(library) if kind in "TDBRWV"}


def needed(file):
    return {(name, version) for kind, name, version in _entries(file) if kind in "Uw"}


def installed_users():
    """Installed programs and libraries that were linked to a libibverbs."""
    programs = [p for name in (
        "ibv_devices ibv_devinfo ibv_rc_pingpong ibv_srq_pingpong ibv_uc_pingpong ibv_ud_pingpong "
        "ibv_xsrq_pingpong ibv_asyncwatch ib_write_bw ib_write_lat ib_read_bw ib_read_lat "
        "ib_send_bw ib_send_lat ib_atomic_bw ib_atomic_lat").split()
        if (p := shutil.which(name)) is not None]
    libraries = []
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        for pattern in ("librdmacm.so.1", "libmlx5.so.1", "libmlx4.so.1", "libefa.so.1",
                        "ucx/libuct_ib.so.0", "libucs.so.0"):
            libraries += pathlib.Path(folder).glob(pattern)
    return [pathlib.Path(p) for p in programs] + libraries
