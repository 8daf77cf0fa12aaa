#pragma once
// READs of GPU memory over one port, by a queue pair joined to itself: see gpu_flush.h.
//
// While it is broken, another way must bring what it was asked for.
//
// Threads: the engine's; quiet() from any.
#include <atomic>
#include <cstdint>
#include <memory>

#include "gda/served/back/loop_pair.h"
#include "gda/team/flush_sources.h"

namespace twinpath::gda {

class FlushLoop {
 public:
  // Where the byte goes: registered memory, that nobody reads.
  struct Sink {
    std::uint64_t address = 0;
    std::uint32_t lkey = 0;
  };
  enum class State : std::uint8_t { works, broken, refused };  // broken: with its port

  static constexpr std::uint32_t kReads = 4;  // under way at most

  static Result<std::unique_ptr<FlushLoop>> make(const TeamCore& team, int port, const Sink& sink);

  // READ number `n`, more than those before.  Where nothing of the GPU's is registered over the
  // port none is needed.
  void post(std::uint64_t n);
  bool has_room() const { return under_way_ < kReads; }
  bool pending() const { return done_.load(std::memory_order_relaxed) != last(); }
  // Whether turn() has anything to do: also of READs that are not waited for any more.
  bool busy() const { return pending() || under_way_ != 0; }
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }
  // What was there before that number, and those before it, is visible.
  std::uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Polls, and takes in what was made anew: what is pending goes by that.
  void turn();
  // By another way what was there before that number is visible.
  void settle(std::uint64_t n);

  LoopPair& pair() { return *pair_; }
  const LoopPair& pair() const { return *pair_; }
  State state() const {
    return refused_ ? State::refused : pair_->broken() ? State::broken : State::works;
  }
  // Of one that does not work.
  struct Failure {
    const char* what = "";
    int status = 0;
  };
  const Failure& failure() const { return failure_; }
  // Whether no READ of a number up to that is under way.
  bool quiet(std::uint64_t n) const;

 private:
  FlushLoop(const TeamCore& team, int port, const Sink& sink)
      : team_(team), port_(static_cast<std::size_t>(port)), sink_(sink) {}
  void fail(const char* what, int status, bool refused);
  // Nothing is under way, whatever has brought what was asked for.
  void rest() { read_.store(last(), std::memory_order_release); }

  const TeamCore& team_;
  const std::size_t port_;  // the team's first or second
  const Sink sink_;
  std::unique_ptr<LoopPair> pair_;
  std::uint32_t under_way_ = 0;
  bool refused_ = false;
  Failure failure_;
  std::atomic<std::uint64_t> last_{0}, done_{0}, read_{0};
};

}  // namespace twinpath::gda
