#include "proxy/listener.h"

#include <poll.h>

#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

// False: nobody is to be dropped, or nobody waits.
bool ProxyListener::make_room() {
  pollfd waiting{socket_.fd(), POLLIN, 0};
  if (::poll(&waiting, 1, 0) != 1) return false;
  const auto stranger = std::find_if(shaking_.begin(), shaking_.end(), [this](const Shaking& s) {
    return !s.connection->peer_known() && hearing_.over(s.since);
  });
  if (stranger == shaking_.end()) return false;
  core_->strangers.tell(
      stranger->connection->peer_text() + " said nothing while others wait; dropped", now_ns());
  shaking_.erase(stranger);
  return true;
}

Status ProxyListener::take_waiting() {
  // Nobody else could be let in meanwhile.
  for (const Shaking& s : shaking_)
    if (s.connection->turned_away()) return Status::ok;
  while (shaking_.size() < kMaxHandshakes || make_room()) {
    auto socket = socket_.accept();
    if (!socket && socket.status() == Status::no_memory) {
      if (make_room()) continue;  // a silent stranger should not have the spare one
      return turn_away_next();
    }
    if (!socket) return socket.status() == Status::again ? Status::ok : socket.status();
    TP_TRY(let_in(std::move(socket).take(),
                  core_->devices->config().connect_timeout_ms * kMillisecond));
  }
  return Status::ok;
}

Status ProxyListener::let_in(TcpSocket socket, std::int64_t limit) {
  auto rails = choose_rails(*core_->devices, device_);
  if (!rails) return rails.status();
  shaking_.push_back(
      {std::make_unique<Connection>(Connection::Role::acceptor, core_, device_,
                                    std::move(rails).take(), nonce_, std::move(socket), limit),
       hearing_.begin()});
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
  if (const Status s = let_in(std::move(socket).take(), kTurnAwayLimit); s != Status::ok) {
    core_->spare.restore();
    return s;
  }
  shaking_.back().connection->turn_away(
      "the process on " + host_name() +
      " has no descriptor left for this connection: raise its limit of open files (ulimit -n)");
  return Status::ok;
}

Status ProxyListener::shake(std::unique_ptr<RecvComm>& comm) {
  for (std::size_t i = 0; i < shaking_.size();) {
    const Status s = shaking_[i].connection->advance();
    if (s == Status::again) {
      ++i;
      continue;
    }
    std::unique_ptr<Connection> ended = std::move(shaking_[i].connection);
    shaking_.erase(shaking_.begin() + static_cast<std::ptrdiff_t>(i));
    if (ended->turned_away()) {
      const bool known = ended->peer_known();
      ended.reset();
      core_->spare.restore();
      if (known) return s;
      continue;
    }
    if (s == Status::ok) {
      const int used = ended->device();
      comm = std::make_unique<ProxyRecvComm>(core_, used, ended->take());
      return Status::ok;
    }
    // A stranger is no concern of the caller; a peer that had the handle and failed is, and so is
    // a profile that lets this process hear nobody.
    if (ended->peer_known() || s == Status::system) return s;
  }
  return Status::again;
}

Status ProxyListener::accept(std::unique_ptr<RecvComm>& comm) {
  if (shaking_.size() >= kMaxHandshakes) {
    // Who has spoken since the last call is heard before anybody is dropped.
    if (const Status s = shake(comm); s != Status::again) return s;
  }
  hearing_.look(now_ns());
  TP_TRY(take_waiting());
  return shake(comm);
}

}  // namespace twinpath
