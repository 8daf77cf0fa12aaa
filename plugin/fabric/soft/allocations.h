#pragma once
// CUDA allocations of this process that are registered: one id each while any MR uses it.
//
// Threads: any.  Where copies are made elsewhere, all that needs the driver is done by whoever
// acquires; otherwise it is done when it is first asked for.
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plugin/fabric/soft/keys.h"
#include "plugin/gpu/engine.h"

namespace twinpath::soft {

class Allocations {
 public:
  // Its id; 0: copies cannot reach the memory, and the log says why.
  std::uint64_t acquire(const PointerInfo& info);
  // True: nobody uses it any more, so those who have mapped it are to be told.
  bool release(std::uint64_t id);
  // Where it lies for copies that are issued here.  Null and `failed`: it cannot be had.
  std::shared_ptr<ImportedAllocation> mapping(std::uint64_t id, bool& failed);
  // What another process needs to map it; of kind none where there is no such thing.
  std::shared_ptr<const ExportedAllocation> exported(std::uint64_t id);

 private:
  struct Entry {
    PointerInfo info;
    int users = 0;
    std::shared_ptr<ImportedAllocation> mapping;
    std::shared_ptr<const ExportedAllocation> exported;
    bool failed = false;
  };
  std::uint64_t known(const PointerInfo& info);  // lock_ held; one user more; 0: not known

  std::mutex lock_;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::uint64_t next_ = 1;
};

}  // namespace twinpath::soft
