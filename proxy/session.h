#pragma once
// The view that one communicator has of the transport: its CQs, its settings, and the
// connections that are being made for it.
//
// A caller may forget a connection that it began: older tables of NCCL keep its state in a buffer
// that they throw away, and their session lasts as long as the process.  Such connections go once
// the session has been called for TWINPATH_CONNECT_TIMEOUT_MS without their turn having come.
//
// Threads: any; connections in the making are under a mutex.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "proxy/connect/connection.h"

namespace twinpath {

class ProxySession final : public Session {
 public:
  ProxySession(std::shared_ptr<Devices> devices, const CommSettings& settings);

  Status listen(int device, std::span<std::uint8_t, kHandleBytes> handle,
                std::unique_ptr<Listener>& listener) override;
  Status connect(int device, std::span<std::uint8_t, kHandleBytes> handle,
                 std::unique_ptr<SendComm>& comm) override;
  void expect(const TrafficHints& hints) override {
    if (core_->devices->config().net_hints) core_->expected.set(hints);
  }

 private:
  // Drops connections in the making that nobody went on with until their time was over.
  void drop_forgotten();
  Status start(int device, std::span<std::uint8_t, kHandleBytes> handle,
               std::unique_ptr<Connection>& connection);

  std::shared_ptr<SessionCore> core_;
  std::mutex mutex_;
  // By the number that the caller's handle buffer carries between calls.
  struct Begun {
    std::unique_ptr<Connection> connection;
    int named;                // the device that the caller asked for
    std::int64_t gone_on_at;  // by clock_
  };
  std::unordered_map<std::uint64_t, Begun> connecting_;
  std::uint64_t next_number_ = 1;
  RunClock clock_;              // under mutex_
  std::int64_t next_look_ = 0;  // none of connecting_ is to be dropped earlier
};

}  // namespace twinpath
