#pragma once
// The control connection of a link once it is established: single bytes (wire/handshake.h) and,
// where queues can be replaced, frames (wire/failover.h).  What is received is handed over whole;
// what the socket does not take waits here.
//
// Threads: under the hub's lock, but for what TcpSocket allows besides.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plugin/base/socket.h"
#include "proxy/wire/failover.h"

namespace twinpath {

struct ControlMessage {
  enum class Kind : std::uint8_t {
    goodbye,
    failure,
    broken,
    frame,
    nonsense,  // a frame that cannot be one; what was behind it is lost
    unknown    // of another version: to be ignored
  };
  Kind kind = Kind::unknown;
  // Of a frame; the body is there until receive() returns.
  FailoverKind frame = FailoverKind::stop;
  std::span<const std::uint8_t> body;
};

class ControlChannel {
 public:
  // `frames`: both ends know them; otherwise they are unknown bytes.
  ControlChannel(TcpSocket socket, bool frames) : socket_(std::move(socket)), frames_(frames) {}

  TcpSocket& socket() { return socket_; }
  const TcpSocket& socket() const { return socket_; }

  // Behind what waits; sends what goes.
  void send(std::span<const std::uint8_t> bytes);
  void say(std::uint8_t word) { send({&word, 1}); }
  // Whether the socket has taken all of it.
  bool sent() const { return outbox_.empty(); }

  // Reads what has come, no more than some 16 KiB, and hands each message that is whole to
  // `take(const ControlMessage&)`, in order.  That may send, and must not receive.
  template <class Take>
  void receive(Take&& take) {
    read();
    std::size_t at = 0;
    while (const auto message = next(at)) take(*message);
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(at));
  }

 private:
  void read();
  // The message there, and where the next begins; nullopt while it is not whole.
  std::optional<ControlMessage> next(std::size_t& at) const;

  TcpSocket socket_;
  const bool frames_;
  std::vector<std::uint8_t> inbox_;   // what is not whole yet
  std::vector<std::uint8_t> outbox_;  // what the socket has not taken
};

}  // namespace twinpath
