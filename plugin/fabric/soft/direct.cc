// Host memory at both ends and both reachable: one copy by the initiator, no second process
// involved.
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "plugin/fabric/soft/ordered_write.h"
#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {

std::uint64_t shifted_address(SoftQp& qp, const ibv_sge& sge) {
  const KeyEntry* k = qp.hca->keys().view().peek(sge.lkey);
  return k != nullptr ? sge.addr - k->region.iova + k->region.base : sge.addr;
}

bool LocalKeys::hold(SoftQp& qp, SendEntry& e, std::uint32_t access, bool& cuda) {
  cuda = false;
  if ((e.flags & IBV_SEND_INLINE) != 0) return true;
  auto* pd = static_cast<SoftPd*>(qp.pd);
  const ibv_sge* sges = qp.send.sges_of(e);
  for (int i = 0; i < e.num_sge; ++i) {
    if (sges[i].length == 0) continue;
    const HeldKey k =
        qp.hca->keys().view().hold(sges[i].lkey, sges[i].addr, sges[i].length, access, pd->number);
    if (!k) return false;
    e.shifted = e.shifted || k.iova != k.base;
    cuda = cuda || k.kind == static_cast<std::uint32_t>(MemoryKind::cuda);
    if (count_ == kMost) {
      KeyView::drop(k);
      return false;
    }
    held_[static_cast<std::size_t>(count_++)] = k.count;
  }
  return true;
}

namespace {

// Bytes that both ends hold in one piece.  Gives how many were moved, 0 or less: refused.
ssize_t copy_piece(int pid, std::uint64_t near, std::uint64_t far, std::size_t bytes,
                   bool to_remote) {
  // A peer may watch small writes by their words (a CTS): they become visible in address order,
  // one kernel copy for each.
  constexpr std::size_t kWord = 8, kOrdered = 64;
  iovec l{reinterpret_cast<void*>(near), bytes}, r[kOrdered / kWord];
  unsigned long n = 0;
  if (to_remote && bytes <= kOrdered && bytes > kWord && far % kWord == 0) {
    for (std::size_t at = 0; at < bytes; at += kWord)
      r[n++] = {reinterpret_cast<void*>(far + at), std::min(kWord, bytes - at)};
  } else {
    r[n++] = {reinterpret_cast<void*>(far), bytes};
  }
  return to_remote ? process_vm_writev(pid, &l, 1, r, n, 0) : process_vm_readv(pid, &l, 1, r, n, 0);
}

}  // namespace

bool copy_direct(SoftQp& qp, SendEntry& e, const Region& remote, bool to_remote) {
  const std::uint64_t far_base = remote.base + (e.remote_address - remote.iova);
  const std::uint64_t end = std::min(e.length, e.offset + kSlice);
  while (e.offset != end) {
    const LocalPiece piece = local_piece(qp, e, e.offset);
    std::size_t n = std::min(piece.bytes, end - e.offset);
    if (n == 0) break;
    const std::uint64_t near = piece.address, far = far_base + e.offset;
    if (qp.link.peer == nullptr) {
      // The peer's threads may watch what a WRITE brings; what a READ brings is the caller's own
      // until its completion.
      if (to_remote) {
        write_ordered(reinterpret_cast<void*>(far), reinterpret_cast<const void*>(near), n);
      } else {
        read_ordered(reinterpret_cast<void*>(near), reinterpret_cast<const void*>(far), n);
      }
    } else {
      ssize_t got = copy_piece(qp.link.peer->pid, near, far, n, to_remote);
      if (got <= 0) return false;
      n = static_cast<std::size_t>(got);
    }
    e.offset += n;
  }
  return true;
}

bool may_help(SoftQp& qp, const SendEntry& e) {
  return qp.hca->team().wanted() != 0 && e.num_sge == 1 && e.offset == 0 &&
         e.length >= kSharedFrom && qp.send.relay_of(e) == nullptr;
}

void begin_sending(SoftQp& qp, SendEntry& e, const Region& remote, std::uint32_t id,
                   std::uint64_t bytes, Claim& claim) {
  TeamCopy& c = qp.copies.out;
  const ibv_sge& sge = qp.send.sges_of(e)[0];
  const bool read = is_read(e);
  c.begin(id, qp.link.peer != nullptr ? qp.link.peer->pid : 0, !read, local_address(qp, e, sge),
          remote.base + (e.remote_address - remote.iova), bytes, claim);
  const auto pd = static_cast<SoftPd*>(qp.pd)->number;
  c.near_guard = {qp.hca->keys().view(), sge.lkey,
                  read ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0u, pd, sge.addr};
  c.far_guard = {remote_keys(qp), e.rkey, needed_right(e),
                 qp.link.theirs->pd.load(std::memory_order_relaxed), e.remote_address};
}

Step copy_with_team(SoftQp& qp, SendEntry& e, const Region& remote, bool to_remote) {
  TeamCopy& c = qp.copies.out;
  // The end of a WRITE that the far end's threads may watch comes last, when all else is in place.
  const bool watched = to_remote && qp.link.peer == nullptr &&
                       ((remote.base + (e.remote_address - remote.iova)) & 3) == 0;
  if (!e.helped) {
    constexpr std::uint32_t kOwnId = 1;  // of the claim that nobody else has
    qp.copies.own_claim.next.store(std::uint64_t{kOwnId} << 32, std::memory_order_relaxed);
    begin_sending(qp, e, remote, kOwnId, watched ? e.length - last_words(e.length) : e.length,
                  qp.copies.own_claim);
    e.helped = true;
    e.offset = 1;  // begun: a draining queue finishes it
  }
  switch (qp.hca->team().look(c)) {
    case CopyTeam::Look::more:
      return Step::more;
    case CopyTeam::Look::wait:
      return Step::wait;
    case CopyTeam::Look::failed:
      e.helped = false;
      e.offset = std::uint64_t{c.take_failed() - 1} * kChunk;
      return Step::failed;
    case CopyTeam::Look::done:
      break;
  }
  if (watched)
    write_ordered(reinterpret_cast<void*>(c.far + c.total),
                  reinterpret_cast<const void*>(c.near + c.total), e.length - c.total);
  e.offset = e.length;
  return Step::done;
}

}  // namespace twinpath::soft
