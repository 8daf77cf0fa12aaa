#pragma once
// Makes queue pairs anew while kernels run, for PortRenewals: that allocates, and takes locks of
// the adapter's driver, so it is not for who drives the context (GIN's engine, RMA's callers).
//
// Threads: one of its own.  All functions are the driver's; of a pair one thing is done at a time.
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gda/context/context_memory.h"
#include "gda/served/two_ports.h"

namespace twinpath::gda {

// What one end tells the other of its queue pairs, as it lies in memory.
struct QueueWord {
  enum class Kind : std::uint8_t { offer, answer, cannot };
  Kind kind = Kind::offer;
  std::uint8_t bytes = 0;                // of `ends`
  std::array<std::uint8_t, 254> ends{};  // room for two, of the longest names
};
static_assert(sizeof(QueueWord) == ContextMemory::kWordBytes);

class QueueMaker {
 public:
  enum class Answer : std::uint8_t { pending, done, failed };

  // `ports` outlive this.
  QueueMaker(const TwoPorts& ports, std::size_t pairs);
  ~QueueMaker();
  QueueMaker(const QueueMaker&) = delete;
  QueueMaker& operator=(const QueueMaker&) = delete;

  // A queue pair for that one, with its receives; and for the first way one more over the second,
  // beside the one in use.  Once done: take_in(), word().
  void make(std::size_t p, int way) { begin(p, way, Job::make); }
  static bool has_next(int way) { return way == 0; }
  // Of that port, which are broken (port_pairs.h).  Nobody is told how it ends.
  void renew_loops(int port);
  // Brings what was taken in to the far end in that word; to itself it needs none.
  void raise(std::size_t p, int way, const QueueWord& far);
  // Asked until it is not pending.
  Answer look(std::size_t p);
  void take_in(std::size_t p);
  // What the peer must know of it: `ends`.
  const QueueWord& word(std::size_t p) const { return slots_[p].word; }

 private:
  enum class Job : std::uint8_t { none, make, raise, done, failed };
  struct Slot {
    std::atomic<Job> job{Job::none};  // none, done and failed: the engine's, else the thread's
    int way = 0;
    PortPairs::Renewed pair, next;  // made; after take_in() those before them
    QueueWord word, far;
  };
  void begin(std::size_t p, int way, Job job);
  void ring();
  void run();
  bool work(std::size_t p, Job job);
  bool make(std::size_t p, int way, PortPairs::Renewed& into);
  bool raise(std::size_t p);

  const TwoPorts& ports_;
  std::vector<Slot> slots_;
  std::array<std::atomic<bool>, 2> loops_{};  // by port: asked for
  std::atomic<int> rung_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace twinpath::gda
