#pragma once
// The sets of queue pairs (shared_pairs.h) that a session shares with its peers' sessions.
//
// The connecting end chooses: it joins a set on the same path that has a number left, or makes one,
// and says which in its `queues` frame, with the addresses of all pairs.  So whichever member's
// frame the accepting end sees first has all that it needs to make its half.
//
// Sets last as long as the session: a peer may join one whose members have all left here.
//
// Threads: any.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "proxy/queues/registered_buffer.h"
#include "proxy/queues/shared_pairs.h"

namespace twinpath {

class SharedSets {
 public:
  struct Place {
    SharedPairs* pairs = nullptr;
    std::uint32_t set = 0;
    int member = 0;
  };
  // Which way a queue goes: the peer's session, both ports with their addresses, and which of the
  // connection's queues it is (NCCL_IB_QPS_PER_CONNECTION: they are to use different paths).
  using Path = std::tuple<std::uint64_t, std::vector<std::uint8_t>, std::size_t>;

  SharedSets();

  // Of this session, for peers; never 0.
  std::uint64_t session() const { return session_; }

  // At the connecting end.  `make()`: a Result of new pairs.
  template <class Make>
  Result<Place> join(const Path& path, Make&& make) {
    const std::lock_guard hold(mutex_);
    Made& last = chosen_[path];
    if (last.pairs == nullptr || last.members == kMostMembers || !last.pairs->whole()) {
      auto made = make();
      if (!made) return made.status();
      all_.push_back(std::move(made).take());
      last = {all_.back().get(), ++last_set_, 0};
    }
    return Place{last.pairs, last.set, last.members++};
  }

  // At the accepting end, as the peer has chosen.  `bad_argument`: nobody can, or what it names has
  // failed here.
  template <class Make>
  Result<Place> join(std::uint64_t peer, std::uint32_t set, int member, Make&& make) {
    const std::lock_guard hold(mutex_);
    Heard& heard = heard_[{peer, set}];
    if (heard.pairs == nullptr) {
      auto made = make();
      if (!made) return made.status();
      all_.push_back(std::move(made).take());
      heard.pairs = all_.back().get();
    }
    const std::uint64_t bit = std::uint64_t{1} << member;
    if (!heard.pairs->whole() || (heard.members & bit) != 0) return Status::bad_argument;
    heard.members |= bit;
    return Place{heard.pairs, set, member};
  }

  // At the accepting end: whether that set of the peer's has failed here.
  bool failed(std::uint64_t peer, std::uint32_t set);
  // At the connecting end: nobody joins that set any more, as it has failed at the other end.
  void leave(std::uint32_t set);

  // Memory of a member that closes.  What its peer still writes there must not be refused: that
  // would end the queue pairs of all.
  void keep(std::unique_ptr<RegisteredBuffer> memory);

 private:
  struct Made {
    SharedPairs* pairs = nullptr;
    std::uint32_t set = 0;
    int members = 0;
  };
  struct Heard {
    SharedPairs* pairs = nullptr;
    std::uint64_t members = 0;
  };
  std::uint64_t session_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RegisteredBuffer>> kept_;  // goes behind the pairs
  std::vector<std::unique_ptr<SharedPairs>> all_;
  std::map<Path, Made> chosen_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Heard> heard_;
  std::uint32_t last_set_ = 0;
};
static_assert(kMostMembers == 64, "a bit each");

}  // namespace twinpath
