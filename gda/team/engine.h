#pragma once
// The thread that serves the queues of kernels: one per process and GPU, shared by all contexts
// there.  It goes round its clients without ever blocking: kernels wait for it.
//
// Where an adapter serves the queues of all clients there is nothing to go round for: the thread
// looks around ten times a second and sleeps else.
//
// Rules of the thread: no CUDA call that may wait, no allocation, no lock that anybody holds while
// waiting for a kernel.
//
// Threads: add, remove and pass_round from any but the engine's own.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gda/team/word_turn.h"
#include "plugin/base/config.h"
#include "plugin/base/counter_page.h"

namespace twinpath::gda {

class EngineClient {
 public:
  // Looks at its queues and completions once; true when something moved.
  virtual bool turn() = 0;
  // Now and then (about ten times a second): what need not be looked at each turn.
  virtual void look_around() = 0;
  // After a turn in which nothing moved, 5000 times a second at most: what may be why.  A system
  // call is in nobody's way then.
  virtual void glance() {}
  // Where no client of an engine does, its thread sleeps between looks; asked after each.
  virtual bool needs_turns() const { return true; }

 protected:
  ~EngineClient() = default;
};

class Engine {
 public:
  // The engine of that GPU (-1: CPU threads play it), started if need be; it ends with the last
  // holder.
  static std::shared_ptr<Engine> of(int gpu, EngineChoice choice, HelperCpus cpus,
                                    CounterPage* page = nullptr);
  Engine(int gpu, EngineChoice choice, HelperCpus cpus = HelperCpus::near,
         std::shared_ptr<counters::GinCounts> counts = std::make_shared<counters::GinCounts>());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add(EngineClient& client);
  // When it returns the engine does not know the client any more.
  void remove(EngineClient& client);
  // Returns after a round that has begun after the call: what the engine read before, it has used.
  void pass_round();

  // Of who adds to words of this GPU's memory, for signals without atomics.
  WordTurn& words() { return words_; }
  // Written by the engine's thread.
  counters::GinCounts& counts() { return *counts_; }

  // That many numbers in a row for QPs or CQs: 24 bits, not in use by any client that still lives
  // (they go round after 16 million).
  std::uint32_t take_numbers(std::uint32_t count);

 private:
  void run();
  void adopt_changes();
  void idle(std::int64_t since, int cpus);
  void sleep_until_changed(std::int64_t limit_ns);

  const int gpu_;
  const EngineChoice choice_;
  const HelperCpus cpus_;
  const std::shared_ptr<counters::GinCounts> counts_;
  WordTurn words_;
  std::mutex mutex_;
  std::condition_variable round_passed_, woken_;
  std::vector<EngineClient*> wanted_;   // under mutex_
  std::vector<EngineClient*> spare_;    // under mutex_: what the thread gets next, allocated by us
  std::vector<EngineClient*> serving_;  // the thread's own
  std::uint64_t asked_ = 0, passed_ = 0;  // under mutex_: rounds waited for
  std::uint32_t next_number_ = kFirstNumber;
  std::atomic<bool> changed_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;

  static constexpr std::uint32_t kFirstNumber = 0x100;
};

}  // namespace twinpath::gda
