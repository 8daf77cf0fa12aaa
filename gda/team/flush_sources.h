#pragma once
// Which GPU memory of a team an adapter may have written: its registered windows there.  A READ of
// a byte of one of them pushes what was written to any (gpu_flush.h).
//
// Threads: add and remove from one thread at a time; any() and current() from the engine's at the
// same time, lock-free.  A removed one stays readable; who has removed it waits until no READ of it
// is under way (GinComm::deregister_window) before the memory goes.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace twinpath::gda {

struct FlushSource {
  std::uint64_t address = 0;             // as the fabric names it
  std::array<std::uint32_t, 2> rkeys{};  // over the team's first port, and its second; 0: not there
};

class FlushSources {
 public:
  // What remove() is given.
  const FlushSource* add(const FlushSource& source) {
    kept_.push_back(std::make_unique<const FlushSource>(source));
    live_.push_back(kept_.back().get());
    publish();
    return live_.back();
  }
  void remove(const FlushSource* source) {
    std::erase(live_, source);
    publish();
  }
  bool any() const { return current() != nullptr; }
  // One that is registered over that port; null: nothing can have come over it.
  const FlushSource* current(std::size_t port = 0) const {
    return current_[port].load(std::memory_order_acquire);
  }

 private:
  // Partner: the acquire in current().
  void publish() {
    for (std::size_t port = 0; port < current_.size(); ++port) {
      const auto last = std::find_if(live_.rbegin(), live_.rend(),
                                     [port](const auto* each) { return each->rkeys[port] != 0; });
      current_[port].store(last == live_.rend() ? nullptr : *last, std::memory_order_release);
    }
  }

  // All that ever were: the engine may still look at one.  16 bytes a registration.
  std::vector<std::unique_ptr<const FlushSource>> kept_;
  std::vector<const FlushSource*> live_;
  std::array<std::atomic<const FlushSource*>, 2> current_{};
};

}  // namespace twinpath::gda
