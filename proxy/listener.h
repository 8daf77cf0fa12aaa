#pragma once
// Waits for peers that hold its handle.  Any number of connections may be in the handshake at a
// time; strangers and peers that stall cost nobody else anything.
//
// Threads: one at a time.
#include <memory>
#include <vector>

#include "proxy/connect/connection.h"

namespace twinpath {

inline constexpr std::size_t kMaxHandshakes = 32;
inline constexpr std::int64_t kHandshakeLimit = 10'000'000'000;  // ns, from accept to ready

class ProxyListener final : public Listener {
 public:
  ProxyListener(std::shared_ptr<SessionCore> core, int device, TcpListener socket,
                const Nonce& nonce)
      : core_(std::move(core)), device_(device), socket_(std::move(socket)), nonce_(nonce) {}

  Status accept(std::unique_ptr<RecvComm>& comm) override;

 private:
  Status take_waiting();

  std::shared_ptr<SessionCore> core_;
  const int device_;
  TcpListener socket_;
  const Nonce nonce_;
  std::vector<std::unique_ptr<Connection>> shaking_;
};

}  // namespace twinpath
