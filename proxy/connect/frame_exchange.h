#pragma once
// The frames of one handshake over a socket that never blocks: what is on its way out, and what has
// come so far.  A frame goes, and comes, in as many calls as it takes.
//
// Threads: one at a time.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plugin/base/socket.h"
#include "plugin/base/status.h"
#include "proxy/wire/handshake.h"

namespace twinpath {

class FrameExchange {
 public:
  // `nonce`: of the listener's handle; frames with another are not ours.
  explicit FrameExchange(const Nonce& nonce) : nonce_(nonce) {}

  // ok when all of the frame went, again when the rest must wait: call with the same frame then.
  // Anything else is the socket's end (TcpSocket::send_part).
  Status send(TcpSocket& socket, FrameType type, std::span<const std::uint8_t> body);
  // ok when a frame has come: header() and body() are its until the next call.  bad_argument:
  // bytes that belong to no connection of this listener.  Anything else is the socket's end.
  Status receive(TcpSocket& socket);
  const FrameHeader& header() const { return header_; }
  std::span<const std::uint8_t> body() const { return body_; }

  // Sends a refusal as far as it goes at once; none inside a frame, whose rest the peer would take
  // it for.
  void refuse(TcpSocket& socket, std::string_view text);
  // Whether the peer has shown that it holds the handle.
  bool heard() const { return heard_; }
  // Whether bytes of the next frame have come.
  bool receiving() const { return header_got_ != 0; }
  // The next frame goes over another socket: forgets what was on its way out.
  void start_over() { out_.clear(); }

 private:
  const Nonce nonce_;
  std::vector<std::uint8_t> out_;  // empty: no frame is on its way
  std::size_t sent_ = 0;
  std::array<std::uint8_t, kFrameHeaderBytes> header_bytes_{};
  std::size_t header_got_ = 0;
  FrameHeader header_;
  std::vector<std::uint8_t> body_;
  std::size_t body_got_ = 0;
  bool heard_ = false;
};

}  // namespace twinpath
