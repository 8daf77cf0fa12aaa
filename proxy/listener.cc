#include "proxy/listener.h"

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

Status ProxyListener::take_waiting() {
  // Nobody else could be let in meanwhile.
  for (const auto& connection : shaking_)
    if (connection->turned_away()) return Status::ok;
  while (shaking_.size() < kMaxHandshakes) {
    auto socket = socket_.accept();
    if (!socket && socket.status() == Status::no_memory) return turn_away_next();
    if (!socket) return socket.status() == Status::again ? Status::ok : socket.status();
    shaking_.push_back(std::make_unique<Connection>(
        Connection::Role::acceptor, core_, device_, rails_, nonce_, std::move(socket).take(),
        now_ns() + core_->devices->config().connect_timeout_ms * kMillisecond));
  }
  return Status::ok;
}

// Not a stranger: the handle's number in our answer is for those who know it.  So the caller's
// hello comes first, and accept() fails when it has been answered.
Status ProxyListener::turn_away_next() {
  if (!core_->spare.lend()) return Status::system;
  auto socket = socket_.accept();
  if (!socket) {
    core_->spare.restore();
    return socket.status() == Status::again ? Status::ok : Status::system;
  }
  shaking_.push_back(std::make_unique<Connection>(Connection::Role::acceptor, core_, device_,
                                                  rails_, nonce_, std::move(socket).take(),
                                                  now_ns() + kTurnAwayLimit));
  shaking_.back()->turn_away("the process on " + host_name() +
                             " has no descriptor left for this connection: raise its limit of open "
                             "files (ulimit -n)");
  return Status::ok;
}

Status ProxyListener::accept(std::unique_ptr<RecvComm>& comm) {
  TP_TRY(take_waiting());
  for (std::size_t i = 0; i < shaking_.size();) {
    const Status s = shaking_[i]->advance();
    if (s == Status::again) {
      ++i;
      continue;
    }
    std::unique_ptr<Connection> ended = std::move(shaking_[i]);
    shaking_.erase(shaking_.begin() + static_cast<std::ptrdiff_t>(i));
    if (ended->turned_away()) {
      const bool known = ended->peer_known();
      ended.reset();
      core_->spare.restore();
      if (known) return s;
      continue;
    }
    if (s == Status::ok) {
      comm = std::make_unique<ProxyRecvComm>(core_, device_, ended->take());
      return Status::ok;
    }
    // A stranger is no concern of the caller; a peer that had the handle and failed is.
    if (ended->peer_known()) return s;
  }
  return Status::again;
}

}  // namespace twinpath
