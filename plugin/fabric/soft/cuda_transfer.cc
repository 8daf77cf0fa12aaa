// RDMA WRITE and READ where an end is CUDA memory.  The WQE becomes one copy job per SGE; jobs
// of one QP share an order and so finish in order; the immediate data follows when the last has.
#include <cerrno>
#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {
namespace {

// Where the far end lies for a copy issued here; address 0: not known yet, or `failed`.
CopyEnd far_end(SoftQp& qp, const SendEntry& e, const Region& k, bool& failed) {
  if (k.kind == static_cast<std::uint32_t>(MemoryKind::host)) {
    if (qp.link.peer != nullptr) {  // no longer the key that start() has seen
      failed = true;
      return {};
    }
    return {k.base + (e.remote_address - k.iova), -1};
  }
  auto mapping = qp.link.peer != nullptr ? qp.link.peer->allocation(k.alloc_id, e.rkey, failed)
                                         : qp.hca->allocations().mapping(k.alloc_id, failed);
  if (!mapping) return {};
  // `k.base` is the owner's address of iova: its offset in the allocation is the same here.  A peer
  // may say anything of it, but the mapping's bounds are ours.
  const std::uint64_t offset = k.base - k.alloc_base + (e.remote_address - k.iova);
  if (offset > mapping->bytes() || e.length > mapping->bytes() - offset) {
    failed = true;
    return {};
  }
  return {mapping->address() + offset, mapping->gpu()};
}

// Whether what was posted to the GPU that it reads from is placed; if not, it will be.
bool pushed(SoftQp& qp, const SendEntry& e, const Region& k, const CopyEnd& far) {
  PostedWrites& posted = qp.hca->posted();
  return !posted.on() || qp.link.peer != nullptr || !is_read(e) || far.gpu < 0 ||
         posted.push(k.pd, far.gpu);
}

// The key of our own memory, of which `job` is at one SGE.
bool hold_own(QpCopyJob& job, const ibv_sge& sge) {
  const SendEntry& e = *job.entry;
  if ((e.flags & IBV_SEND_INLINE) != 0) return true;
  job.held = hold_sge(*job.qp, e, sge).count;
  return job.held != nullptr;
}

void let_go(QpCopyJob& job) {
  if (job.held != nullptr) KeyView::drop(job.held);
  job.held = nullptr;
}

}  // namespace

HeldKey hold_sge(SoftQp& qp, const SendEntry& e, const ibv_sge& sge) {
  const unsigned access = is_read(e) || is_atomic(e) ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0u;
  return qp.hca->keys().view().hold(sge.lkey, sge.addr, sge.length, access,
                                    static_cast<SoftPd*>(qp.pd)->number);
}

int gpu_of(SoftQp& qp, const SendEntry& e, const ibv_sge& sge) {
  if ((e.flags & IBV_SEND_INLINE) != 0) return -1;
  const KeyEntry* k = qp.hca->keys().view().peek(sge.lkey);
  return k != nullptr && k->region.kind == static_cast<std::uint32_t>(MemoryKind::cuda)
             ? k->region.gpu
             : -1;
}

void copied(CopyJob* base, Status status) {
  auto* job = static_cast<QpCopyJob*>(base);
  SoftQp& qp = *job->qp;
  std::lock_guard hold(qp.lock);
  SendEntry& e = *job->entry;
  let_go(*job);
  // Closed: the process that makes the copies has ended, as if the adapter had.
  if (status != Status::ok && e.status == IBV_WC_SUCCESS)
    e.status = status == Status::closed ? IBV_WC_FATAL_ERR : IBV_WC_LOC_PROT_ERR;
  --e.jobs_left;
  --qp.copies.jobs_in_flight;
  if (e.jobs_left == 0) {
    end_late(qp, e);
    if (qp.state == IBV_QPS_RTS) {
      (void)run_send_queue(qp);
    } else {
      retire(qp);
    }
  }
}

void make_job(SoftQp& qp, SendEntry& e, QpCopyJob& job, CopyEnd to, CopyEnd from,
              std::uint64_t bytes, CopyDone done) {
  job = QpCopyJob{};
  job.to = to;
  job.from = from;
  job.bytes = bytes;
  job.order = qp.qp_num;
  job.done = done;
  job.qp = &qp;
  job.entry = &e;
}

bool submit(QpCopyJob& job, const ibv_sge* own) {
  if (own != nullptr && !hold_own(job, *own)) return false;
  ++job.qp->copies.jobs_in_flight;
  ++job.entry->jobs_left;
  if (submit_copy(&job) == Status::ok) return true;
  --job.qp->copies.jobs_in_flight;
  --job.entry->jobs_left;
  let_go(job);
  return false;
}

Step start_cuda(SoftQp& qp, SendEntry& e) {
  const bool read = is_read(e);
  // Packets that carry data, and direct copies, come first in order; READs are not overtaken.
  if (!packets_in_place(qp)) return Step::wait;
  if (e.length == 0) {
    if (e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) return send_imm(qp, e) ? Step::done : Step::wait;
    e.stage = Stage::placed;
    return Step::done;
  }
  // What is late is posted in the order in which it was taken.
  if (qp.hca->posted().on() && qp.send.sent != qp.send.exec) return Step::wait;
  const HeldKey k = hold_remote(qp, e);
  if (!k) return refused(qp, e);
  bool failed = false;
  CopyEnd far = far_end(qp, e, k, failed);
  if (far.address == 0) {
    KeyView::drop(k);
    return failed ? fail(e, IBV_WC_REM_OP_ERR) : Step::wait;
  }
  if (!pushed(qp, e, k, far)) {
    KeyView::drop(k);
    return Step::wait;
  }
  QpCopyJob* const jobs = qp.send.jobs_of(e);
  if (comes_late(qp, e, far)) return start_late(qp, e, k, far, jobs);
  const ibv_sge* sges = qp.send.sges_of(e);
  e.held = k.count;
  e.stage = Stage::moving;
  std::uint64_t offset = 0;
  for (int i = 0; i < e.num_sge; ++i) {
    if (sges[i].length == 0) continue;
    QpCopyJob& job = jobs[i];
    CopyEnd near{local_address(qp, e, sges[i]), gpu_of(qp, e, sges[i])};
    CopyEnd there{far.address + offset, far.gpu};
    make_job(qp, e, job, read ? near : there, read ? there : near, sges[i].length, copied);
    job.executor = near.gpu;
    offset += sges[i].length;
  }
  for (int i = 0; i < e.num_sge; ++i) {
    if (sges[i].length == 0 || submit(jobs[i], &sges[i])) continue;
    if (e.jobs_left == 0) {
      KeyView::drop(e.held);
      e.held = nullptr;
    }
    return fail(e, IBV_WC_LOC_PROT_ERR);
  }
  return Step::done;
}

void fetched(CopyJob* base, Status status) {
  auto* job = static_cast<QpCopyJob*>(base);
  SoftQp& qp = *job->qp;
  const std::lock_guard hold(qp.lock);
  SendEntry& e = *job->entry;
  let_go(*job);
  --e.jobs_left;
  --qp.copies.jobs_in_flight;
  if (status != Status::ok && e.status == IBV_WC_SUCCESS) {
    e.status = status == Status::closed ? IBV_WC_FATAL_ERR : IBV_WC_LOC_PROT_ERR;
    enter_error(qp);
  } else if (qp.state == IBV_QPS_RTS) {
    (void)run_send_queue(qp);
  } else {
    retire(qp);
  }
}

bool lands_on_gpu(SoftQp& qp, const SendEntry& e) {
  return e.num_sge == 1 && gpu_of(qp, e, qp.send.sges_of(e)[0]) >= 0;
}

bool place_fetched(SoftQp& qp, SendEntry& e, const std::uint8_t* value, std::uint64_t bytes) {
  const ibv_sge& sge = qp.send.sges_of(e)[0];
  if (bytes > sizeof e.operand[0] || sge.length != bytes) return false;
  std::memcpy(&e.operand[0], value, bytes);  // the request has been carried out: it is free
  QpCopyJob& job = *qp.send.jobs_of(e);
  make_job(qp, e, job, {local_address(qp, e, sge), gpu_of(qp, e, sge)},
           {reinterpret_cast<std::uintptr_t>(&e.operand[0]), -1}, bytes, fetched);
  job.executor = job.to.gpu;
  e.received = e.length;
  return submit(job, &sge);
}

bool finish_moved(SoftQp& qp) {
  bool moved = false;
  while (qp.send.sent != qp.send.exec) {
    SendEntry& e = qp.send.entry(qp.send.sent);
    if (e.stage == Stage::moving) {
      if (e.jobs_left != 0) break;
      if (e.status != IBV_WC_SUCCESS) {
        enter_error(qp);
        return true;
      }
      if (e.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        if (qp.link.theirs == nullptr || !send_imm(qp, e)) break;  // null: the port is down
      } else {
        e.stage = Stage::placed;
        e.received = e.length;
      }
      moved = true;
    }
    ++qp.send.sent;
  }
  return moved;
}

}  // namespace twinpath::soft
