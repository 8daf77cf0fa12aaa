// The fault late_us: transfers into GPU memory in two steps.  The first takes the data, and with
// that the WQE is as good as done, for its completion and for what comes after it; the second, the
// placement, is left to PostedWrites.
#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {
namespace {

void take_host(PostedWrite& late, std::uint64_t from, std::uint64_t bytes) {
  std::memcpy(late.data.get() + late.filled, reinterpret_cast<const void*>(from), bytes);
  late.filled += bytes;
}

// `own`: the SGE that it is taken from, if it is one.
bool take_gpu(SoftQp& qp, SendEntry& e, PostedWrite& late, QpCopyJob& job, CopyEnd from,
              std::uint64_t bytes, const ibv_sge* own) {
  make_job(qp, e, job, {reinterpret_cast<std::uintptr_t>(late.data.get() + late.filled), -1}, from,
           bytes, copied);
  job.executor = from.gpu;
  late.filled += bytes;
  return submit(job, own);
}

}  // namespace

bool comes_late(SoftQp& qp, const SendEntry& e, CopyEnd far) {
  if (!qp.hca->posted().on() || qp.link.peer != nullptr || e.length == 0) return false;
  return is_read(e) ? lands_on_gpu(qp, e) : far.gpu >= 0;
}

Step start_late(SoftQp& qp, SendEntry& e, const HeldKey& k, CopyEnd far, QpCopyJob* jobs) {
  const bool read = is_read(e);
  const ibv_sge* sges = qp.send.sges_of(e);
  auto late = std::make_unique<PostedWrite>();
  late->data = std::make_unique<std::uint8_t[]>(e.length);
  late->bytes = e.length;
  if (read) {
    const HeldKey near = hold_sge(qp, e, sges[0]);
    if (!near) {
      KeyView::drop(k);
      return fail(e, IBV_WC_LOC_PROT_ERR);
    }
    late->to = {local_address(qp, e, sges[0]), gpu_of(qp, e, sges[0])};
    late->pd = near.pd;
    late->held = near.count;
    e.held = k.count;
  } else {
    late->to = far;
    late->pd = k.pd;
    late->held = k.count;
  }
  PostedWrite& taken = *late;
  e.late = late.release();
  e.stage = Stage::moving;
  bool ok = true;
  for (int i = 0; i < e.num_sge && ok; ++i) {
    if (sges[i].length == 0) continue;
    const CopyEnd near{local_address(qp, e, sges[i]), gpu_of(qp, e, sges[i])};
    const CopyEnd from = read ? far : near;
    if (from.gpu < 0) {
      take_host(taken, from.address, sges[i].length);
    } else {
      ok = take_gpu(qp, e, taken, jobs[i], from, sges[i].length, read ? nullptr : &sges[i]);
    }
  }
  if (!ok) e.status = IBV_WC_LOC_PROT_ERR;
  if (e.jobs_left == 0) end_late(qp, e);
  return ok ? Step::done : Step::failed;
}

void end_late(SoftQp& qp, SendEntry& e) {
  if (e.held != nullptr) KeyView::drop(e.held);
  e.held = nullptr;
  std::unique_ptr<PostedWrite> late(e.late);
  e.late = nullptr;
  if (late == nullptr) return;
  if (e.status == IBV_WC_SUCCESS) return qp.hca->posted().add(std::move(late));
  KeyView::drop(late->held);
}

}  // namespace twinpath::soft
