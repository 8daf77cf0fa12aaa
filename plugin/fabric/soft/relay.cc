// RDMA WRITE and READ between GPU memory here and host memory of another process, which no copy
// engine of ours reaches: by way of ordinary memory here, as long as the message.  From there, or
// to there, it goes as a message in host memory goes, copied or in packets.
//
// A WRITE stays first in the queue until all of it has left the GPU.  A READ ends when the copy
// engine has put into the GPU what came.
#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {
namespace {

// Every SGE to or from its place in the relay, by a job of the copy engine where it is GPU memory.
// False: one was not taken, and e.status says so; those before it may be under way.
bool copy_sges(SoftQp& qp, SendEntry& e, bool into_relay, CopyDone done) {
  QpCopyJob* const jobs = qp.send.jobs_of(e);
  std::uint8_t* at = qp.send.relay_of(e);
  bool all = true;
  for (int i = 0; i < e.num_sge && all; ++i) {
    const ibv_sge& sge = qp.send.sges_of(e)[i];
    if (sge.length == 0) continue;
    const HeldKey own = hold_sge(qp, e, sge);
    if (!own) {
      all = false;
      break;
    }
    const CopyEnd near{local_address(qp, e, sge), gpu_of(qp, e, sge)};
    const CopyEnd there{reinterpret_cast<std::uintptr_t>(at), -1};
    const CopyEnd &to = into_relay ? there : near, &from = into_relay ? near : there;
    at += sge.length;
    if (near.gpu < 0) {
      std::memcpy(reinterpret_cast<void*>(to.address), reinterpret_cast<const void*>(from.address),
                  sge.length);
    } else {
      // It may end before the next is submitted, and then waits for the lock that we hold.
      make_job(qp, e, jobs[i], to, from, sge.length, done);
      jobs[i].executor = near.gpu;
      all = submit(jobs[i], &sge);
    }
    KeyView::drop(own);
  }
  if (!all) e.status = IBV_WC_LOC_PROT_ERR;
  return all;
}

}  // namespace

bool needs_relay(const SoftQp& qp, const Region& remote) {
  return qp.link.peer != nullptr && remote.kind == static_cast<std::uint32_t>(MemoryKind::host);
}

Step fill_relay(SoftQp& qp, SendEntry& e) {
  if (e.jobs_left != 0) return Step::wait;
  if (qp.send.relay_of(e) != nullptr) return Step::done;
  if (qp.send.make_relay(e) == nullptr) return fail(e, IBV_WC_LOC_QP_OP_ERR);
  if (is_read(e)) return Step::done;
  const bool all = copy_sges(qp, e, true, copied);
  if (e.jobs_left != 0) return Step::wait;
  return all ? Step::done : Step::failed;
}

bool empty_relay(SoftQp& qp, SendEntry& e, CopyDone done) { return copy_sges(qp, e, false, done); }

}  // namespace twinpath::soft
