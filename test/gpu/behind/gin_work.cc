#include "test/gpu/behind/gin_work.h"

#include "test/gpu/behind/gpu.h"

namespace twinpath::behind {
namespace {

constexpr std::size_t kPage = 4096;  // windows are made of whole pages

}  // namespace

GinWork::GinWork(const gda_perf::NcclApi& nccl, ncclComm_t comm, int rank, int ranks,
                 std::size_t largest)
    : place_bytes_((largest + kPage - 1) / kPage * kPage) {
  check(load_exchange(), "loading the GIN kernel");
  const std::size_t bytes = place_bytes_ * (1 + 2 * static_cast<std::size_t>(ranks));
  nccl.check(nccl.mem_alloc(&memory_, bytes), "ncclMemAlloc", comm);
  nccl.check(nccl.window_register(comm, memory_, bytes, &exchange_.window, NCCL_WIN_COLL_SYMMETRIC),
             "ncclCommWindowRegister", comm);
  const ncclDevCommRequirements requirements = gda_perf::gin_requirements(1, 1, false);
  nccl.check(nccl.dev_comm_create(comm, &requirements, &exchange_.comm),
             "ncclDevCommCreate with GIN", comm);
  exchange_.rank = rank;
  exchange_.ranks = ranks;
  exchange_.place_bytes = place_bytes_;
  exchange_.memory = static_cast<const std::byte*>(memory_);
}

void GinWork::reduce(float* sums, std::size_t count, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(exchange_.ranks);
  exchange_.places_at = place_bytes_ * (1 + done_ % 2 * ranks);
  exchange_.sums = sums;
  exchange_.count = count;
  exchange_.signals = ++done_ * (ranks - 1);
  launch_exchange(exchange_, stream);
  check(cudaGetLastError(), "the GIN kernel");
}

}  // namespace twinpath::behind
