#pragma once
// Waits for peers that hold its handle; each has TWINPATH_CONNECT_TIMEOUT_MS to say its hello, and
// then as long as its host answers.
// Strangers and peers that stall cost nobody else anything: when too many are in the handshake, the
// oldest that has not shown the handle's nonce makes room for who waits.
//
// Threads: one at a time.
#include <memory>
#include <vector>

#include "plugin/base/hearing_time.h"
#include "proxy/connect/connection.h"

namespace twinpath {

inline constexpr std::size_t kMaxHandshakes = 64;
// Of a caller that can only be turned away, until it has said who it is.
inline constexpr std::int64_t kTurnAwayLimit = 5'000'000'000;  // ns

class ProxyListener final : public Listener {
 public:
  ProxyListener(std::shared_ptr<SessionCore> core, int device, TcpListener socket,
                const Nonce& nonce)
      : core_(std::move(core)), device_(device), socket_(std::move(socket)), nonce_(nonce) {}

  Status accept(std::unique_ptr<RecvComm>& comm) override;

 private:
  struct Shaking {
    std::unique_ptr<Connection> connection;
    std::int64_t since = 0;  // hearing_.begin()
  };
  Status take_waiting();
  Status let_in(TcpSocket socket, std::int64_t limit);
  bool make_room();
  Status shake(std::unique_ptr<RecvComm>& comm);
  // With no descriptor left the next caller is let in on the spare one, to be told so.
  Status turn_away_next();

  std::shared_ptr<SessionCore> core_;
  const int device_;
  TcpListener socket_;
  const Nonce nonce_;
  std::vector<Shaking> shaking_;  // the oldest first
  HearingTime hearing_;
};

}  // namespace twinpath
