#include "proxy/listener.h"

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

Status ProxyListener::take_waiting() {
  while (shaking_.size() < kMaxHandshakes) {
    auto socket = socket_.accept();
    if (!socket) return socket.status() == Status::again ? Status::ok : socket.status();
    auto rails = choose_rails(*core_->devices, device_);
    if (!rails) return rails.status();
    shaking_.push_back(std::make_unique<Connection>(
        Connection::Role::acceptor, core_, device_, std::move(rails).take(), nonce_,
        std::move(socket).take(), now_ns() + kHandshakeLimit));
  }
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
    const std::unique_ptr<Connection> ended = std::move(shaking_[i]);
    shaking_.erase(shaking_.begin() + static_cast<std::ptrdiff_t>(i));
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
