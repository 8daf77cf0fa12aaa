#pragma once
// What a rank of a random client has, whatever it drives: the other rank's word, the time at which
// it leaves, and what went wrong.
//
// What goes wrong is kept as text: ranks may be in threads of one process.
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "test/abi/any_net.h"
#include "test/abi/random_plan.h"

namespace twinpath::test {

// In which something moves, or what is under way ends; of time in which this process ran.
inline constexpr std::int64_t kStuck = 30 * kSecond;
inline constexpr std::int64_t kLook = 50 * kMillisecond;

class RandomSide {
 protected:
  // How the other rank has ended; what it says, or that it is there no more.
  enum class Peer : std::uint8_t { there, done, gone };

  // `peer`: a socket to the other rank.
  RandomSide(const Cut& cut, int side, int peer, bool may_lose)
      : side_(side), may_lose_(may_lose || cut.cuts_off()), cut_(cut), peer_fd_(peer) {}

  void note(const std::string& what) {
    const std::lock_guard hold(lock_);
    if (wrong_.empty()) wrong_ = what;
  }
  bool time_to_leave() {
    return cut_.ending == Ending::abort && cut_.side == side_ &&
           clock_.look(now_ns()) > cut_.after_ms * kMillisecond;
  }

  void say_handle(const Handle& handle) { say({'h', handle}); }
  // False: the other rank has gone.
  bool hear_handle(Handle& handle);
  // Its last word, which is said once: the next scene's follow it.
  void say_done() { say_last('d'); }
  void say_gone() { say_last('g'); }
  // Looks for the other rank's word for so long at most.
  void watch(std::int64_t ms);
  // `work` with each of `shares`, in a thread for each, until all have ended.  Meanwhile this
  // thread looks for the other rank's word and for the time to leave, and calls `look`.
  template <class Share, class Work, class Look>
  void in_threads(std::vector<Share>& shares, const Work& work, const Look& look) {
    std::atomic<std::size_t> working{shares.size()};
    std::vector<std::thread> threads;
    for (Share& share : shares)
      threads.emplace_back([&work, &working, &share] {
        work(share);
        --working;
      });
    while (working > 0) {
      if (peer_ == Peer::there)
        watch(1);
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      look();
      if (time_to_leave()) leave_ = true;
    }
    for (std::thread& t : threads) t.join();
  }

  const int side_;
  const bool may_lose_;
  RunClock clock_{kLook};
  std::atomic<Peer> peer_{Peer::there};
  // Leaves, whatever is under way.
  std::atomic<bool> leave_{false};
  std::mutex lock_;
  std::string wrong_;

 private:
  struct Word {
    char what = 0;
    Handle handle{};
  };
  void say(const Word& word);
  void say_last(char what) {
    if (!said_.exchange(true)) say({what, {}});
  }
  void take(const Word& word) { peer_ = word.what == 'd' ? Peer::done : Peer::gone; }

  const Cut& cut_;
  const int peer_fd_;
  std::atomic<bool> said_{false};
};

}  // namespace twinpath::test
