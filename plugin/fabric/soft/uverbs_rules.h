#pragma once
// What Linux refuses of a registration before any adapter is asked: uverbs (ib_uverbs_reg_mr in
// drivers/infiniband/core/uverbs_cmd.c, UVERBS_METHOD_REG_DMABUF_MR in uverbs_std_types_mr.c,
// ib_check_mr_access in include/rdma/ib_verbs.h), the pinning of pages (umem.c, umem_dmabuf.c) and
// the queues' memory of mlx5 (devx_umem_get and devx_umem_find_best_pgsize in hw/mlx5/devx.c).
// Whether pages are there, and may be written, is pin.h's question.
//
// Pure; each gives an errno value, or 0.
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>

namespace twinpath::soft {

struct Registered {
  std::uint64_t start = 0;  // an address, or a place in a dma-buf
  std::uint64_t bytes = 0;
  std::uint64_t iova = 0;
  unsigned access = 0;
};

// Not in every rdma-core's headers.
inline constexpr unsigned kAccessFlush = 3u << 8;  // global and persistent
inline constexpr unsigned kAccessByDmabuf = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
                                            IBV_ACCESS_RELAXED_ORDERING;

// Remote write and atomics need local write (IB specification vol. 1, 10.6.3.1); hints of the
// optional range may be unknown.
constexpr int refuse_access(unsigned access) {
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                              IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                              IBV_ACCESS_HUGETLB | kAccessFlush;
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0)
    return EINVAL;
  if ((access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE)) != 0) return EINVAL;
  // The adapter has neither paging on demand nor flushes.
  return (access & (IBV_ACCESS_ON_DEMAND | kAccessFlush)) != 0 ? EOPNOTSUPP : 0;
}

// A range that wraps, also when its end is rounded up to a page.  No bytes: Linux counts pages, of
// which there is none, or one that nobody reaches; drivers differ, so both are refused.
constexpr int refuse_range(std::uint64_t start, std::uint64_t bytes, std::uint64_t page) {
  const std::uint64_t end = start + bytes;
  return bytes == 0 || end < start || ((end + page - 1) & ~(page - 1)) < end ? EINVAL : 0;
}

// An adapter's page tables translate whole pages.
constexpr bool same_place_in_page(std::uint64_t start, std::uint64_t iova, std::uint64_t page) {
  return ((start ^ iova) & (page - 1)) == 0;
}

// ibv_reg_mr and ibv_reg_mr_iova.
constexpr int refuse_memory(const Registered& r, std::uint64_t page) {
  if (!same_place_in_page(r.start, r.iova, page)) return EINVAL;
  if (const int error = refuse_access(r.access); error != 0) return error;
  return refuse_range(r.start, r.bytes, page);
}

// ibv_reg_dmabuf_mr, before and after the descriptor is looked at.  `size`: of the dma-buf.
constexpr int refuse_dmabuf(const Registered& r, std::uint64_t page) {
  if (!same_place_in_page(r.start, r.iova, page)) return EINVAL;
  if ((r.access & ~kAccessByDmabuf) != 0) return EINVAL;
  if (const int error = refuse_access(r.access); error != 0) return error;
  return r.start + r.bytes < r.start ? EINVAL : 0;
}
constexpr int refuse_dmabuf_range(const Registered& r, std::uint64_t size) {
  return r.bytes == 0 || r.start > size || r.bytes > size - r.start ? EINVAL : 0;
}

// mlx5dv_devx_umem_reg_ex.  Its pages may be larger than the host's only where memory is
// contiguous, so the host's or a smaller one must be among those that are acceptable.
constexpr int refuse_umem(unsigned access, std::uint64_t page_sizes, std::uint64_t page) {
  constexpr unsigned kAllowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
  constexpr std::uint64_t kAdapterPage = 4096;
  if ((access & ~kAllowed) != 0) return EINVAL;
  if (const int error = refuse_access(access); error != 0) return error;
  return (page_sizes & (2 * page - 1) & ~(kAdapterPage - 1)) == 0 ? EINVAL : 0;
}

}  // namespace twinpath::soft
