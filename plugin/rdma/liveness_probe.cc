#include "plugin/rdma/liveness_probe.h"

#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath {

bool post_probe(ibv_qp* qp, std::uint64_t wr_id, const ProbeTarget& target) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = target.address;
  wr.wr.rdma.rkey = target.rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

bool LivenessProbe::answered(const ibv_wc& wc, const std::string& name) {
  under_way_ = false;
  if (wc.status == IBV_WC_SUCCESS) {
    ++answers_;
    return true;
  }
  TP_WARN("%s: the peer's host is silent on the control connection, and its adapter, too: %s",
          name.c_str(), completion_hint(wc.status));
  return false;
}

}  // namespace twinpath
