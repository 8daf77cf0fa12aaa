#pragma once
// Where senders lay parcels together: registered blocks that the sends of one session share, one
// pool for each adapter.  A block is taken when a parcel is posted and given back by its
// completion; when there is none, messages go alone.  So an idle connection has none.
//
// Threads: make() from any thread; take and give under the hub's lock.
#include <array>
#include <cstdint>
#include <memory>

#include "plugin/rdma/devices.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

inline constexpr std::uint16_t kNoBlock = 0xffff;

class ParcelPool {
 public:
  static constexpr std::uint16_t kBlocks = 48;

  // Null (logged) when the memory cannot be registered: senders then do without parcels.
  static std::unique_ptr<ParcelPool> make(const Verbs& verbs, const Adapter& adapter);

  const Adapter* adapter() const { return adapter_; }
  std::uint32_t lkey() const { return mr_->lkey; }
  // kNoBlock when all are in use.
  std::uint16_t take() { return free_count_ > 0 ? free_[--free_count_] : kNoBlock; }
  void give(std::uint16_t block) { free_[free_count_++] = block; }
  std::uint8_t* data(std::uint16_t block) const { return memory_.get() + kParcelStride * block; }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };
  const Adapter* adapter_ = nullptr;
  std::unique_ptr<std::uint8_t, Free> memory_;
  Owned<ibv_mr> mr_;
  std::array<std::uint16_t, kBlocks> free_{};
  std::uint16_t free_count_ = 0;
};

}  // namespace twinpath
