// See gpu_flush.h.
#include "gda/served/back/gpu_flush.h"

#include <array>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<GpuFlush>> GpuFlush::make(const TeamCore& team, const Sink& sink) {
  const Verbs& verbs = team.verbs();
  if (verbs.ordered || gpu::cuda::driver() == nullptr) return std::unique_ptr<GpuFlush>();
  std::unique_ptr<GpuFlush> made(new GpuFlush(team.flush_sources, sink));
  made->port_ = team.rail.port.port->name;
  auto cq = make_completion_queue(verbs, team.rail.port.adapter->context, kReads, team.owner());
  if (!cq) return cq.status();
  made->cq_ = std::move(cq).take();
  QueueSettings settings = path_settings(team.config(), team.settings);
  settings.access = IBV_ACCESS_REMOTE_READ;
  settings.recv_depth = 0;
  settings.send_depth = static_cast<int>(kReads);
  auto pair = QueuePair::make(verbs, team.rail, made->cq_.get(), settings, team.limits);
  if (!pair) return pair.status();
  made->pair_ = std::move(pair).take();
  TP_TRY(made->pair_->raise(made->pair_->end(), "itself", true));
  return made;
}

void GpuFlush::post(const FlushSource& source) {
  ibv_sge sge{sink_.address, 1, sink_.lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = source.address;
  wr.wr.rdma.rkey = source.rkey;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_->qp(), &wr, &bad); error != 0)
    return fail("cannot be posted", error);
  posted_.store(posted_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void GpuFlush::fail(const char* what, int status) {
  TP_WARN(
      "%s: a read of GPU memory, which makes what peers wrote there visible, %s (%d); the "
      "communicator cannot be used any more; see dmesg of this host",
      port_.c_str(), what, status);
  dead_.store(true, std::memory_order_release);
}

bool GpuFlush::turn() {
  if (!under_way() || dead()) return false;
  const std::uint64_t before = done();
  const std::uint64_t posted = posted_.load(std::memory_order_relaxed);
  if (wanted_ > posted && posted - before < kReads) {
    if (const FlushSource* source = sources_.current(); source != nullptr) {
      post(*source);
    } else if (posted == before) {
      // No window is there any more, so no kernel may look at one.
      posted_.store(wanted_, std::memory_order_relaxed);
      done_.store(wanted_, std::memory_order_release);
      return true;
    }
  }
  std::array<ibv_wc, kReads> wcs;
  const int n = dead() ? 0 : ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
  for (int i = 0; i < n; ++i) {
    const ibv_wc_status status = wcs[static_cast<std::size_t>(i)].status;
    if (status != IBV_WC_SUCCESS) {
      fail(completion_hint(status), static_cast<int>(status));
      break;
    }
    done_.store(done() + 1, std::memory_order_release);
  }
  return done() != before;
}

}  // namespace twinpath::gda
