#pragma once
// Waits for peers that hold its handle; each has TWINPATH_CONNECT_TIMEOUT_MS from accept to ready.
// Any number of connections may be in the handshake at a time; strangers and peers that stall cost
// nobody else anything.
//
// Threads: one at a time.
#include <memory>
#include <vector>

#include "proxy/connect/connection.h"

namespace twinpath {

inline constexpr std::size_t kMaxHandshakes = 32;
// Of a caller that can only be turned away, until it has said who it is.
inline constexpr std::int64_t kTurnAwayLimit = 5'000'000'000;  // ns

class ProxyListener final : public Listener {
 public:
  ProxyListener(std::shared_ptr<SessionCore> core, int device, std::vector<Rail> rails,
                TcpListener socket, const Nonce& nonce)
      : core_(std::move(core)),
        device_(device),
        rails_(std::move(rails)),
        socket_(std::move(socket)),
        nonce_(nonce) {}

  Status accept(std::unique_ptr<RecvComm>& comm) override;

 private:
  Status take_waiting();
  // With no descriptor left the next caller is let in on the spare one, to be told so.
  Status turn_away_next();

  std::shared_ptr<SessionCore> core_;
  const int device_;
  const std::vector<Rail> rails_;
  TcpListener socket_;
  const Nonce nonce_;
  std::vector<std::unique_ptr<Connection>> shaking_;
};

}  // namespace twinpath
