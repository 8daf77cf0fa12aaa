// Host memory at both ends and both reachable: one copy by the initiator, no second process
// involved.
#include <sys/uio.h>

#include <cstring>

#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {

bool check_local(SoftQp& qp, const SendEntry& e, std::uint32_t access, bool& cuda) {
  cuda = false;
  if ((e.flags & IBV_SEND_INLINE) != 0) return true;
  auto* pd = static_cast<SoftPd*>(qp.pd);
  const ibv_sge* sges = qp.sges_of(e);
  for (int i = 0; i < e.num_sge; ++i) {
    if (sges[i].length == 0) continue;
    KeyEntry* k =
        qp.hca->keys().view().hold(sges[i].lkey, sges[i].addr, sges[i].length, access, pd->number);
    if (k == nullptr) return false;
    cuda = cuda || k->kind == static_cast<std::uint32_t>(MemoryKind::cuda);
    // MRs may not be deregistered while work requests use them (the caller's duty in verbs), so
    // the check holds until the WQE completes.
    KeyView::drop(k);
  }
  return true;
}

bool copy_direct(SoftQp& qp, SendEntry& e, const KeyEntry& remote, bool to_remote) {
  const ibv_sge* sges = qp.sges_of(e);
  const std::uint64_t far_base = remote.base + (e.remote_address - remote.iova);
  std::uint64_t skip = e.offset;
  for (int i = 0; i < e.num_sge; ++i) {
    if (skip >= sges[i].length) {
      skip -= sges[i].length;
      continue;
    }
    while (skip < sges[i].length) {
      // The local address of an lkey is its virtual address: local iova is always the address.
      void* near = reinterpret_cast<void*>(sges[i].addr + skip);
      void* far = reinterpret_cast<void*>(far_base + e.offset);
      std::size_t n = sges[i].length - skip;
      if (qp.peer == nullptr) {
        if (to_remote) {
          std::memcpy(far, near, n);
        } else {
          std::memcpy(near, far, n);
        }
      } else {
        iovec l{near, n}, r{far, n};
        ssize_t got = to_remote ? process_vm_writev(qp.peer->pid, &l, 1, &r, 1, 0)
                                : process_vm_readv(qp.peer->pid, &l, 1, &r, 1, 0);
        if (got <= 0) return false;
        n = static_cast<std::size_t>(got);
      }
      skip += n;
      e.offset += n;
    }
    skip = 0;
  }
  return true;
}

}  // namespace twinpath::soft
