#include "plugin/rdma/completion_text.h"

#include <array>

namespace twinpath {
namespace {

struct Hint {
  ibv_wc_status status;
  const char* text;
};

constexpr std::array kHints = {
    Hint{
        IBV_WC_RETRY_EXC_ERR,
        "the peer did not answer: its process died, its port went down, or packets are lost (check "
        "cables, switch counters, MTU, PFC/ECN); NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say how "
        "long to try"},
    Hint{IBV_WC_RNR_RETRY_EXC_ERR, "the peer had no receive posted; this is a bug, please report"},
    Hint{IBV_WC_REM_ACCESS_ERR,
         "the peer's adapter refused the address: the peer's process died or deregistered its "
         "buffer (see the peer's own log), the buffer is too small, or PCIe ACS/IOMMU redirects "
         "GPU traffic (see the peer's kernel log)"},
    Hint{IBV_WC_REM_INV_REQ_ERR,
         "the peer's adapter refused the request: message too long for it, or unequal MTU"},
    Hint{IBV_WC_REM_OP_ERR,
         "the peer's adapter could not finish the transfer (see its kernel log)"},
    Hint{IBV_WC_LOC_PROT_ERR,
         "the local buffer is not (or no longer) registered on this adapter, the adapter is being "
         "taken away (see dmesg), or PCIe ACS/IOMMU redirects GPU traffic"},
    Hint{IBV_WC_LOC_LEN_ERR, "a message did not fit its buffer; this is a bug, please report"},
    Hint{IBV_WC_LOC_QP_OP_ERR,
         "the local queue failed: its port went down (check its cable and switch port: ip link, "
         "ibstat), or the adapter has an error (see dmesg)"},
    Hint{IBV_WC_LOC_ACCESS_ERR, "the peer touched local memory that it has no right to"},
    Hint{IBV_WC_WR_FLUSH_ERR,
         "the queue was already in error; look for an earlier message here or at the peer, and "
         "check "
         "cables and switch ports (ip link, ibstat) if there is none"},
    Hint{IBV_WC_FATAL_ERR,
         "the adapter failed (see dmesg); a software HCA, when the process that copies GPU memory "
         "for it has ended (see the log)"},
    Hint{IBV_WC_GENERAL_ERR, "the adapter reports a general error (see dmesg)"},
};

}  // namespace

const char* completion_hint(ibv_wc_status status) {
  for (const Hint& h : kHints)
    if (h.status == status) return h.text;
  return "see the kernel log (dmesg) of both hosts";
}

std::string failed_completions_text(const std::string& device) {
  return "a completion queue of " + device +
         " failed: it overran, or the adapter could not write it; see the kernel log (dmesg)";
}

}  // namespace twinpath
