#pragma once
// The work requests of one queue pair, from the chain that is posted with one call to their
// completions.
//
// Every eighth and the last of a chain ask for a completion.  One retires everything before it,
// because RC completes in order.
//
// Threads: the engine's.
#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace twinpath::gda {

class SendChain {
 public:
  static constexpr std::uint32_t kMost = 64;        // work requests in one post
  static constexpr std::uint32_t kSignalEvery = 8;  // so that waiters learn of early ones early

  // A completion retires these.
  struct Mark {
    std::uint64_t done = 0;      // WQEs before this number are done with it
    std::uint32_t requests = 0;  // work requests
    bool reads = false;          // one of them is a READ
  };
  // A place in the chain, zeroed.
  struct Place {
    ibv_send_wr& request;
    ibv_sge& sge;
  };

  // `slots`: work requests that the queue pair holds; one at least.
  explicit SendChain(std::uint32_t slots);

  bool has_room() const { return in_flight_ != marks_.size(); }
  bool empty() const { return chained_ == 0; }
  // Nothing is chained, nor under way.
  bool idle() const { return empty() && first_ == next_; }
  // Where the next work request goes; it counts once it is add()ed.
  Place place();
  // Its place among the queue pair's slots, which is nobody else's until it has been retired.
  std::uint32_t slot() const { return static_cast<std::uint32_t>(sequence_ % marks_.size()); }
  // A work request of the WQE `index`; those before `done` are done with it.  False: post now.
  bool add(std::uint64_t index, std::uint64_t done, bool reads);
  // WQEs before `done` are done with the last work request.  Not of an idle chain.
  void extend(std::uint64_t done);
  // Ends the chain: its first, for ibv_post_send().  Not of an empty one.
  ibv_send_wr* close();
  // The last work request's WQE.
  std::uint64_t last() const { return index_; }
  // A completion has come.  Nothing where none was asked for.
  std::optional<Mark> retire();
  // None of what is chained or under way comes back.
  void forget();

 private:
  Mark& mark(std::uint64_t number) { return marks_[number % marks_.size()]; }
  void signal(ibv_send_wr& request);

  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> sges_;
  std::uint32_t chained_ = 0;
  std::uint64_t index_ = 0, done_ = 0;  // of the last one
  std::uint32_t unsignalled_ = 0;       // since the last signalled one, chained ones included
  bool unsignalled_reads_ = false;
  std::uint32_t in_flight_ = 0;  // work requests that hold a slot, chained ones included
  std::uint64_t sequence_ = 0;   // of work requests
  std::vector<Mark> marks_;      // ring of [first_, next_)
  std::uint64_t first_ = 0, next_ = 0;
};

}  // namespace twinpath::gda
