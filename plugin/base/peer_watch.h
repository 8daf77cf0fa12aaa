#pragma once
// Whether a peer is lost, from what its control socket shows and whether data move.
//
// The peer's kernel says by the socket that the peer's process has ended: end of file, or a reset.
// That is final.  Silence is not: the control network may be down while data flow, a host may be
// moved to another machine, and a peer that waits moves no data either.  A silent peer is lost when
// the data path has not moved for the limit, too; while in doubt the owner of the data path asks
// it (Verdict::suspect).  A connection on which nothing is outstanding needs no answer now.
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "plugin/base/socket.h"

namespace twinpath {

enum class Verdict : std::uint8_t {
  fine,
  suspect,  // no sign of life for a while: ask over the data path
  ended,    // its process closed the socket, or the kernel did for it
  reset,    // its host answers that nobody has the connection
  silent,   // no sign of life for the limit, neither over the socket nor of data
};

struct Evidence {
  PeerSign sign = PeerSign::quiet;
  std::int64_t silence_ms = 0;  // for which the peer's kernel has owed an answer on the socket
  std::int64_t stall_ms = 0;    // since data last moved
  bool outstanding = false;     // somebody waits for the peer
  std::int64_t limit_ms = 0;
};
Verdict judge(const Evidence& evidence);

// Collects the evidence of one connection, in the time in which this process ran.
//
// Threads: one at a time.
class PeerWatch {
 public:
  explicit PeerWatch(std::int64_t limit_ms) : limit_ms_(limit_ms) {}
  // One look at the socket, a few times a second: what TcpSocket::look() and owed_ms() say.
  // `now` in ns; `progress`: any number that is another one after data moved.
  Verdict look(PeerSign sign, std::int64_t silence_ms, std::int64_t now, bool outstanding,
               std::uint64_t progress);
  // Of the last look.
  std::int64_t silence_ms() const { return evidence_.silence_ms; }
  std::int64_t stall_ms() const { return evidence_.stall_ms; }

 private:
  std::int64_t limit_ms_;
  Evidence evidence_;
  std::uint64_t progress_ = 0;
  // Looks are some 100 ms apart; a longer way between two was not spent looking.
  RunClock ran_{kSecond};
};

}  // namespace twinpath
