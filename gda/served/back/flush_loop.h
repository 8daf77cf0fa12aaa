#pragma once
// READs of GPU memory over one port, by a queue pair joined to itself: see gpu_flush.h.
//
// One that ends with its port is of no use until it has been made anew, which is done with queue
// pairs that are made anew over that port (port_renewals.h).  What it was asked for meanwhile
// another way must bring.
//
// Threads: the engine's; renew() from any one; quiet() from any.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "gda/connect/queue_pair.h"
#include "gda/team/flush_sources.h"
#include "gda/team/team_core.h"
#include "plugin/base/owned.h"

namespace twinpath::gda {

class FlushLoop {
 public:
  // Where the byte goes: registered memory, that nobody reads.
  struct Sink {
    std::uint64_t address = 0;
    std::uint32_t lkey = 0;
  };
  // Of the team's first port (0) or its second.
  struct Where {
    const Rail& rail;
    const AdapterLimits& limits;
    std::size_t port = 0;
  };
  enum class State : std::uint8_t { works, broken, refused };  // broken: with its port

  static constexpr std::uint32_t kReads = 4;  // under way at most

  static Result<std::unique_ptr<FlushLoop>> make(const TeamCore& team, const Where& where,
                                                 const Sink& sink);

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

  const std::string& port() const { return where_.rail.port.port->name; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Of one that does not work.
  struct Failure {
    const char* what = "";
    int status = 0;
  };
  const Failure& failure() const { return failure_; }
  // Another queue pair, where this one is broken.
  Status renew();
  // Whether no READ of a number up to that is under way.
  bool quiet(std::uint64_t n) const;

 private:
  FlushLoop(const TeamCore& team, const Where& where, const Sink& sink)
      : team_(team), where_(where), sink_(sink) {}
  Result<std::unique_ptr<QueuePair>> make_pair(const Rail& rail) const;
  void fail(const char* what, int status, State state);
  // Nothing is under way, whatever has brought what was asked for.
  void rest() { read_.store(last(), std::memory_order_release); }

  const TeamCore& team_;
  const Where where_;
  const Sink sink_;
  Owned<ibv_cq> cq_;
  std::unique_ptr<QueuePair> pair_, renewed_;
  std::uint32_t under_way_ = 0;
  Failure failure_;
  std::atomic<std::uint64_t> last_{0}, done_{0}, read_{0};
  std::atomic<State> state_{State::works};
  std::atomic<bool> has_renewed_{false};
};

}  // namespace twinpath::gda
