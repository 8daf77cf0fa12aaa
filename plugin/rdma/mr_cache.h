#pragma once
// Registrations of one protection domain, shared by every comm of the device: NCCL registers the
// same buffer on many comms, and pinning it once is enough.
//
// A request is served by any live region of the same kind and ordering that covers it; regions
// may overlap.  Lookup walks the regions by start address, so removals cannot disturb it.
// Threads: any; a mutex that the data path never takes.
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>

#include "plugin/base/counters.h"
#include "plugin/base/status.h"
#include "plugin/fabric/verbs.h"
#include "plugin/transport.h"

namespace twinpath {

enum class MrKind : std::uint8_t { host, cuda, dmabuf };
// dmabuf_fd -1: none.
constexpr MrKind kind_of(MemoryType type, int dmabuf_fd) {
  return dmabuf_fd >= 0 ? MrKind::dmabuf : type == MemoryType::cuda ? MrKind::cuda : MrKind::host;
}

struct MrRequest {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  MrKind kind = MrKind::host;
  bool relaxed_ordering = false;  // wanted; falls back to strict where the device refuses it
  bool remote_atomic = false;     // peers may do atomics on it
  bool data_direct = false;       // wanted for a dma-buf; falls back to the adapter's own function
  std::uint64_t dmabuf_offset = 0;
  int dmabuf_fd = -1;  // -1 for a dma-buf: it is exported here, or the address used
  bool quiet = false;  // a failure is not logged
};

struct MrRegion {
  std::uint64_t start = 0, end = 0;
  MrKind kind = MrKind::host;
  bool relaxed_ordering = false;  // as asked for, not as granted: the key of the lookup
  bool remote_atomic = false;
  bool data_direct = false;  // the same
  ibv_mr* mr = nullptr;
  int users = 0;
};

class MrCache {
 public:
  MrCache(const Verbs& verbs, ibv_pd* pd, std::string device)
      : verbs_(verbs), pd_(pd), device_(std::move(device)) {}
  ~MrCache();
  MrCache(const MrCache&) = delete;
  MrCache& operator=(const MrCache&) = delete;

  // A region that covers the request; release() it once.  Logs the cause of a failure.
  Result<MrRegion*> acquire(const MrRequest& request);
  void release(MrRegion* region);
  std::size_t regions() const;
  // Before the first acquire().
  void count_into(counters::MemoryCounts* counts) { counts_ = counts; }

 private:
  ibv_mr* register_range(const MrRequest& request, std::uint64_t start, std::size_t bytes,
                         int& error);

  const Verbs& verbs_;
  ibv_pd* pd_;
  std::string device_;
  counters::MemoryCounts* counts_ = nullptr;
  mutable std::mutex mutex_;
  std::list<MrRegion> regions_;  // by start; addresses of elements stay
  bool relaxed_accepted_ = true;
  bool data_direct_accepted_ = true;
};

}  // namespace twinpath
