#pragma once
// What the CPU must do before it tells a kernel of data that an adapter has written to GPU memory.
//
// A completion, a word of a peer, lie in host memory; the data goes to the GPU.  PCIe orders writes
// to one destination only, so a completion may be here before the data is there.  But a read does
// not pass writes that go the same way: once the adapter has read a byte of that GPU's memory, what
// it wrote there before has arrived.  So: a READ on a queue pair joined to itself, posted after the
// completion was polled; when it completes, the kernel may be told.
//
// One READ serves all that asked in a turn of the engine, and kReads are under way at most.
//
// Threads: the engine's; settled() from any.
#include <atomic>
#include <cstdint>
#include <memory>

#include "gda/connect/queue_pair.h"
#include "gda/team/flush_sources.h"
#include "gda/team/team_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

class GpuFlush {
 public:
  // Where the byte goes: registered memory, that nobody reads.
  struct Sink {
    std::uint64_t address = 0;
    std::uint32_t lkey = 0;
  };
  // Null where none is ever needed: on adapters that place in order, and without a CUDA driver.
  static Result<std::unique_ptr<GpuFlush>> make(const TeamCore& team, const Sink& sink);

  // Whether there is GPU memory that an adapter may write.
  bool needed() const { return sources_.any(); }
  // All that the adapter has brought by now is visible when done() has come to the result.
  std::uint64_t request() { return wanted_ = posted_.load(std::memory_order_relaxed) + 1; }
  std::uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Posts and polls.  True when done() has moved.
  bool turn();
  bool under_way() const { return wanted_ != done(); }
  // The queue pair has failed, which was logged; nothing becomes visible any more.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // For who has removed a source and has let the engine pass a round since: no READ of that time
  // is under way once settled(posted()).
  std::uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  bool settled(std::uint64_t posted) const {
    return done_.load(std::memory_order_acquire) >= posted || dead();
  }

 private:
  static constexpr std::uint32_t kReads = 4;

  GpuFlush(const FlushSources& sources, const Sink& sink) : sources_(sources), sink_(sink) {}
  void post(const FlushSource& source);
  void fail(const char* what, int status);

  const FlushSources& sources_;
  const Sink sink_;
  std::string port_;
  Owned<ibv_cq> cq_;
  std::unique_ptr<QueuePair> pair_;
  std::uint64_t wanted_ = 0;  // number of a READ
  std::atomic<std::uint64_t> posted_{0}, done_{0};
  std::atomic<bool> dead_{false};
};

}  // namespace twinpath::gda
