#pragma once
// Ranks of one process each that connect to each other, for many_connections.
//
// Threads: one in each rank.  Who fails says so and ends its process; the round then fails.
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "proxy/transport.h"
#include "test/support/numbers.h"

namespace twinpath::perf {

using test::median;

inline constexpr int kMostPeers = 64, kRounds = 5;

[[noreturn]] void fail(const char* what);

// What ranks tell each other, in memory that all map.
struct Board {
  struct Rank {
    std::array<std::uint8_t, kHandleBytes> handle{};
    std::atomic<bool> listens{false}, connected{false};
    std::int64_t grown = 0;  // bytes
  };
  std::array<Rank, std::size_t{kMostPeers} + 1> ranks;
  std::atomic<int> over{0};  // how many ranks are done
  // Of rank 0.
  std::int64_t queue_pairs = 0, open_ns = 0, close_ns = 0;
  double median_us = 0, p99_us = 0, gbytes_per_s = 0;
};

// Queue pairs that this process has made.
std::int64_t queue_pairs_made();

template <class Step>
void until(Step step) {
  const std::int64_t end = now_ns() + 60 * kSecond;
  while (!step()) {
    if (now_ns() > end) fail("timed out");
    (void)::sched_yield();
  }
}

class Rank {
 public:
  // Listens: rank 0 on its first device, the others on their last.
  Rank(Board& board, int rank, const std::string& job);

  // Until that many connections have come, in all.
  void take(std::size_t wanted);
  // As many to each of those ranks.
  void reach(const std::vector<int>& ranks, std::size_t wanted_each);
  Board& board() { return board_; }
  Board::Rank& mine() { return mine_; }

  std::vector<std::unique_ptr<SendComm>> sends;
  std::vector<std::unique_ptr<RecvComm>> receives;

 private:
  Board& board_;
  Board::Rank& mine_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Listener> listener_;
  int device_ = 0;
};

// One round: rank 0 and its peers, each a new process that does `part`.  The board says what came
// of it.
using Part = std::function<void(Rank&, int rank)>;
std::unique_ptr<Board, void (*)(Board*)> play(int peers, const Part& part);

// The second part of the program; its exit status.
int measure_behind();

}  // namespace twinpath::perf
