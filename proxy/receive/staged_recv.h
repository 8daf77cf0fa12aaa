#pragma once
// The receives of a comm that land in the mirror of GPU memory: what has arrived there is copied on
// to the GPU, and only then is the receive complete.
//
// A receive has one copy at a time; what arrives meanwhile goes with the next.  So nothing is
// allocated after construction and no receive waits for another's place.
//
// Threads: under the hub's lock; copies report from the copy thread through atomics.
#include <array>
#include <atomic>
#include <memory>

#include "plugin/rdma/staging.h"
#include "proxy/wire/cts.h"

namespace twinpath {

class StagedReceives {
 public:
  // Waits for copies that are under way: they read mirrors and report to this.
  ~StagedReceives();

  // A receive of up to `capacity` bytes for `address` in `memory` (with a mirror) was posted.
  void expect(int slot, int sub, const ProxyMemory& memory, std::uint64_t address,
              std::size_t capacity);
  // The first `bytes` have arrived; `all`: no more will.  False when it is more than was asked.
  bool arrived(int slot, int sub, std::size_t bytes, bool all);

  // Whether a copy reads out of the mirror of a receive of which more is to come.
  bool copying_parts() const {
    for (std::size_t i = 0; i < busy_count_; ++i) {
      const Landing& l = landings_[busy_[i]];
      // Partner of the release in copy_done(): what writes there next writes after the copy.
      if (!l.all && l.state.load(std::memory_order_acquire) == State::copying) return true;
    }
    return false;
  }
  // What has arrived of that receive does not count: it will come again.  Not while
  // copying_parts().
  void restart(int slot, int sub) {
    Landing& l = landing(slot, sub);
    l.arrived = l.started = 0;
    l.all = false;
  }

  enum class Progress : std::uint8_t { waiting, done, copy_failed, taken_away };
  // Goes on with the copies of that receive.
  Progress advance(int slot, int sub);
  Mirror& mirror(int slot, int sub) { return *landing(slot, sub).mirror; }

  // Receives with something to copy.
  bool busy() const { return busy_count_ > 0; }
  // Calls `f(slot, sub)` for each of them; true takes it off the list.
  template <class F>
  void for_busy(F&& f) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < busy_count_; ++i) {
      const std::uint16_t at = busy_[i];
      if (f(at / kMaxRecvs, at % kMaxRecvs)) {
        landings_[at].busy = false;
      } else {
        busy_[kept++] = at;
      }
    }
    busy_count_ = kept;
  }

 private:
  enum class State : std::uint8_t { idle, copying, copied, failed };
  struct Landing : gpu::CopyJob {
    std::shared_ptr<Mirror> mirror;
    std::uint64_t address = 0;  // on the GPU
    std::size_t capacity = 0;
    std::size_t arrived = 0;  // bytes in the mirror, from its beginning
    std::size_t started = 0;  // of them copied on or being so
    bool all = false;
    bool busy = false;  // on the list
    std::atomic<State> state{State::idle};
    std::atomic<int>* copying = nullptr;
  };
  static constexpr std::size_t kLandings = static_cast<std::size_t>(kRecvSlots) * kMaxRecvs;
  static void copy_done(gpu::CopyJob* base, Status status);
  Landing& landing(int slot, int sub) {
    return landings_[static_cast<std::size_t>(slot * kMaxRecvs + sub)];
  }
  bool start_copy(Landing& l);

  std::unique_ptr<Landing[]> landings_ = std::make_unique<Landing[]>(kLandings);
  std::array<std::uint16_t, kLandings> busy_{};
  std::size_t busy_count_ = 0;
  std::atomic<int> copying_{0};
};

}  // namespace twinpath
