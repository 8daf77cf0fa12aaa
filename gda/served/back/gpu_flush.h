#pragma once
// What the CPU must do before it tells a kernel of data that an adapter has written to GPU memory.
//
// A completion, a word of a peer, lie in host memory; the data goes to the GPU.  PCIe orders writes
// to one destination only, so a completion may be here before the data is there.  But a read does
// not pass writes that go the same way: once the adapter has read a byte of that GPU's memory, what
// it wrote there before has arrived.  So: a READ on a queue pair joined to itself, posted after the
// completion was polled; when it completes, the kernel may be told.
//
// One READ serves all that asked in a turn of the engine, and some are under way at most.
//
// It says nothing of what another adapter wrote.  Where queues can move there is such a queue pair
// over either port (flush_loop.h), and each READ is one over every port by which anything comes.
// What has come over a port that is left a READ over it may not push any more: the GPU's driver
// does (write_flush.h), once a move, before anybody is told that the queue pair is gone.  So it
// does for what waits for a queue pair of these that has ended with its port.
//
// Threads: the engine's; settled() from any.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "gda/served/back/flush_loop.h"
#include "plugin/gpu/write_flush.h"

namespace twinpath::gda {

class GpuFlush {
 public:
  // Null where none is ever needed: on adapters that place in order, and without a CUDA driver.
  static Result<std::unique_ptr<GpuFlush>> make(const TeamCore& team, const FlushLoop::Sink& sink);
  // Queues can move to the team's second port.
  Status add_second(const FlushLoop::Sink& sink);

  // What a queue brings comes over that port.  While none is told of it comes over the first.
  void comes_over(int port) { ++over_[static_cast<std::size_t>(port)]; }
  void moves(int from, int to);
  // Whether anything may come over another port than that.
  bool beyond(int port) const { return over_[static_cast<std::size_t>(1 - port)] != 0; }
  // The last queue that has moved has moved away from it.
  bool left(int port) const { return left_[static_cast<std::size_t>(port)]; }

  // Whether there is GPU memory that an adapter may write.
  bool needed() const { return team_.flush_sources.any(); }
  // All that has been brought by now is visible when done() has come to the result.
  std::uint64_t request() { return wanted_ = posted_.load(std::memory_order_relaxed) + 1; }
  // The same with what this rank itself has written over that port.
  std::uint64_t request_own(int port) {
    own_[static_cast<std::size_t>(port)] = true;
    return request();
  }
  std::uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Posts and polls.  True when done() has moved.
  bool turn();
  bool under_way() const;
  // GPU memory cannot be read, which was logged; nothing becomes visible any more.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // All that has ever come is visible once fenced(), whatever has become of its port; where there
  // is a second one.
  std::uint64_t fence();
  // The same whether or not there are windows that adapters may write.
  std::uint64_t ask_driver() { return writes_ != nullptr ? writes_->ask() : 0; }
  bool driver_failed() const { return writes_ != nullptr && writes_->failed(); }
  bool fenced(std::uint64_t ticket) const {
    return ticket == 0 || writes_ == nullptr || writes_->done() >= ticket;
  }

  // For who has removed a source and has let the engine pass a round since: no READ of that time
  // is under way once settled(posted()).
  std::uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  bool settled(std::uint64_t posted) const;

  // Of that port; null: there is none.
  LoopPair* loop(int port) {
    const auto& loop = loops_[static_cast<std::size_t>(port)];
    return loop != nullptr ? &loop->pair() : nullptr;
  }

 private:
  // Of the driver, and how far each loop had come by then.
  struct Fence {
    std::uint64_t ticket = 0;  // 0: none
    std::array<std::uint64_t, 2> last{};
  };

  explicit GpuFlush(const TeamCore& team) : team_(team) {}
  bool reads(std::size_t port) const;
  void post();
  void take_fence();
  bool works(FlushLoop& loop);
  void fail(const FlushLoop& loop);

  const TeamCore& team_;
  std::array<std::unique_ptr<FlushLoop>, 2> loops_;
  std::array<int, 2> over_{};  // queues
  std::array<bool, 2> left_{};
  Fence fence_;                              // the first that is not there yet
  std::unique_ptr<gpu::WriteFlush> writes_;  // null: no queue can move
  std::uint64_t wanted_ = 0;                 // number of a READ
  std::array<bool, 2> own_{};                // the next one goes over that port, too
  std::atomic<std::uint64_t> posted_{0}, done_{0};
  std::atomic<bool> dead_{false};
};

}  // namespace twinpath::gda
