#pragma once
// The extended atomics of mlx5 adapters, for which verbs have no request: an add that is not
// carried out of its fields, a swap that compares some bits and replaces some, of 4 bytes or 8.
#include <infiniband/verbs.h>

#include <cstdint>

namespace twinpath::soft {

struct MaskedAtomic {
  std::uint64_t wr_id = 0;
  unsigned flags = 0;  // ibv_send_flags
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  ibv_sge to{};  // as many bytes as the atomic has: what was there
  bool compare = false;
  std::uint64_t add_or_swap = 0, compare_with = 0;
  // compare: the bits that are replaced; add: the last bits of fields.
  std::uint64_t mask = 0;
  std::uint64_t compare_mask = 0;  // the bits that are compared
};

// As post_send, of a queue pair of the software HCA: an errno value.  EINVAL: not of 4 or 8 bytes,
// or not aligned to its size.  A word of 4 bytes must lie in registered memory with the aligned 8
// around it, which are read and written, and come back as they were but for it.
int post_masked_atomic(ibv_qp* qp, const MaskedAtomic& atomic);

}  // namespace twinpath::soft
