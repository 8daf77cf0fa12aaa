#pragma once
// What port_moves.h and port_renewals.h know of those who move to a team's second port and back:
// who sends to a rank, and where its signals come.  GIN's are VerbsBackEnd and CountedInbox, RMA
// has its own.
//
// Threads: of who drives the context.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gda/connect/queue_pair.h"
#include "plugin/base/clock.h"
#include "plugin/base/config.h"

namespace twinpath::gda {

// How long what has left a port may take to go on, ns: as long as a port may be down, but time
// enough for a peer that is only slow.
constexpr std::int64_t move_limit(const Config& config) {
  return std::max(config.failover_hold_ms * kMillisecond, 2 * kSecond);
}

// A queue that survives its queue pair: stop(), then, once both ends have stopped theirs, resume().
// Between the two nothing is posted.
class MovingQueue {
 public:
  virtual const std::string& name() const = 0;
  // Nothing is moved any more.
  virtual bool dead() const = 0;
  virtual int on() const = 0;  // which path, 0 or 1
  // Whether there is a way to the other path.
  virtual bool may_move() const = 0;
  // The other path's queue pair was made anew, and is no way yet.
  virtual void renew_other(QueuePair* pair) = 0;
  // `next`: takes this path's place once it has been left, so that there is a way back at once;
  // null: there is none.
  virtual void let_move(bool may, QueuePair* next) = 0;

  // The queue pair goes to error; also done by an error completion of the path.
  virtual void stop() = 0;
  virtual bool stopped() const = 0;
  // All that was posted to it has come back.
  virtual bool drained() const = 0;
  // Both ends have.  `taken`: how many signals of this queue the peer ever took, modulo 2^32. False
  // where that cannot be, which was logged.
  virtual bool resume(std::uint32_t taken) = 0;
  // Once drained: the path to move to is lost, too.  It is left as well, for the one after it.
  virtual void skip() = 0;
  // The way to the peer is lost.
  virtual void fail_unreachable() = 0;

  // Of its own work requests and the last one of a queue pair.
  virtual void on_completion(const ibv_wc& wc) = 0;

  // What silence is judged by: operations [finished, issued), and their bytes, or more.
  struct UnderWay {
    std::uint64_t issued = 0, finished = 0, bytes = 0;
  };
  virtual UnderWay under_way() const = 0;

 protected:
  ~MovingQueue() = default;
};

// By pair of queues: one to a rank, one from it.
class MovingInbox {
 public:
  // The queue pair in use is in error: posts kLastReceive, which comes back last of all.  False: it
  // takes none.
  virtual bool stop(std::size_t pair) = 0;
  // It has come: what arrives from now on is that one's.
  virtual void move(std::size_t pair, int port, ibv_qp* qp) = 0;
  // What queue pairs that are out of use have brought is to become visible to the GPU, whatever has
  // become of their port; it is once fenced().
  virtual std::uint64_t fence() { return 0; }
  virtual bool fenced(std::uint64_t /*ticket*/) { return true; }
  // Signals of that pair ever taken.
  virtual std::uint64_t taken(std::size_t pair) const = 0;
  // A signal, or a receive that was flushed.
  virtual void on_receive(const ibv_wc& wc) = 0;
  // A receive of the queue pair in use has come that was no signal's.
  virtual void give_back(const ibv_wc& wc) = 0;

 protected:
  ~MovingInbox() = default;
};

}  // namespace twinpath::gda
