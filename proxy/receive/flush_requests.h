#pragma once
// The flushes that NCCL has asked for: which rails each has to read back through, and what of that
// is under way.  Nothing here posts.
//
// Threads: under the hub's lock.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "plugin/transport.h"
#include "proxy/receive/flush.h"

namespace twinpath {

class ProxyRecvComm;

// One byte at `address_` of `memory_` is read over each of `rails_`.
class FlushRequest final : public Request {
 public:
  Status test(int& done, int* sizes) override;

  bool active() const { return active_; }
  std::uint32_t rails() const { return rails_; }
  std::uint16_t generation() const { return generation_; }
  // Reads without completion, or it is still to be posted.
  bool pending() const { return pending_ > 0; }
  // To be posted by its test: queues are being replaced.
  bool waits() const { return waits_; }

  // Its reads are posted now.  `landed_by`: when the data of rails that are left out has landed, as
  // they cannot be read through; 0: none is.
  void posting(std::int64_t landed_by) {
    waits_ = false;
    pending_ = 0;
    ++generation_;
    not_before_ = landed_by;
  }
  void posted() { ++pending_; }
  void read_done() { --pending_; }
  // As if that rail had been left out.
  void read_failed(std::int64_t landed_by) {
    --pending_;
    not_before_ = landed_by;
  }
  // What is under way counts no more: it is to be posted anew.
  void repeat() {
    ++generation_;
    pending_ = 1;
    waits_ = true;
  }
  // With no read pending: whether the data has landed.  `now()` is asked only where time counts.
  template <class Now>
  bool landed(Now&& now) const {
    return not_before_ == 0 || now() >= not_before_;
  }

 private:
  friend class Flushes;
  friend class FlushRequests;
  ProxyRecvComm* comm_ = nullptr;
  std::uint16_t slot_ = 0;
  std::uint16_t generation_ = 0;
  std::uint32_t rails_ = 0;  // a bit each
  std::uint64_t address_ = 0;
  const ProxyMemory* memory_ = nullptr;
  int pending_ = 0;
  bool active_ = false;
  bool waits_ = false;
  std::int64_t not_before_ = 0;  // 0: any time
};

// Room for kFlushSlots of them, made with the first GPU memory.
class FlushRequests {
 public:
  explicit FlushRequests(ProxyRecvComm* comm) : comm_(comm) {}
  void make() {
    if (all_ != nullptr) return;
    all_ = std::make_unique<All>();
    for (std::size_t i = 0; i < all_->size(); ++i) {
      (*all_)[i].comm_ = comm_;
      (*all_)[i].slot_ = static_cast<std::uint16_t>(i);
    }
  }
  // Which rails a flush has to read through that is asked for now: those that `carried` data since
  // the last one, and those of flushes under way.  These were posted after their data, too; but
  // they are not done, so they do not count.
  std::uint32_t rails(std::uint32_t carried) const {
    for_active([&](const FlushRequest& f) { carried |= f.rails_; });
    return carried;
  }
  // One over these rails, to be posted; null when all are under way.  Made before.
  FlushRequest* take(std::uint32_t rails, std::uint64_t address, const ProxyMemory* memory) {
    const auto free =
        std::find_if(all_->begin(), all_->end(), [](const FlushRequest& f) { return !f.active_; });
    if (free == all_->end()) return nullptr;
    free->active_ = true;
    free->rails_ = rails;
    free->address_ = address;
    free->memory_ = memory;
    free->pending_ = 1;
    free->waits_ = true;
    return &*free;
  }
  // Whose read that was; null: of an earlier use, or of none.
  FlushRequest* find(std::size_t slot, std::uint16_t generation) {
    if (all_ == nullptr || slot >= all_->size()) return nullptr;
    FlushRequest& f = (*all_)[slot];
    return f.active_ && f.generation_ == generation ? &f : nullptr;
  }
  // The memory is given back: nobody is left to whom its flushes matter.
  void give_up(const ProxyMemory& memory) {
    if (all_ == nullptr) return;
    for (FlushRequest& f : *all_)
      if (f.memory_ == &memory) f.memory_ = nullptr;
  }
  // Those under way are to be posted anew.
  void repeat() {
    for_active([](FlushRequest& f) {
      if (f.pending()) f.repeat();
    });
  }

 private:
  using All = std::array<FlushRequest, kFlushSlots>;
  template <class F>
  void for_active(F&& f) const {
    if (all_ == nullptr) return;
    for (FlushRequest& request : *all_)
      if (request.active_) f(request);
  }
  ProxyRecvComm* const comm_;
  std::unique_ptr<All> all_;
};

}  // namespace twinpath
