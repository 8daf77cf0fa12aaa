#include "proxy/connect/control_channel.h"

#include <array>

#include "proxy/wire/handshake.h"

namespace twinpath {
namespace {

// In one look: a peer that talks without end does not keep us.
constexpr std::size_t kMostHeard = 16384;

ControlMessage::Kind kind_of_word(std::uint8_t byte) {
  switch (byte) {
    case kGoodbye:
      return ControlMessage::Kind::goodbye;
    case kFailure:
      return ControlMessage::Kind::failure;
    case kBroken:
      return ControlMessage::Kind::broken;
    default:
      return ControlMessage::Kind::unknown;
  }
}

}  // namespace

void ControlChannel::send(std::span<const std::uint8_t> bytes) {
  outbox_.insert(outbox_.end(), bytes.begin(), bytes.end());
  if (!socket_.is_open() || outbox_.empty()) return;
  std::size_t sent = 0;
  (void)socket_.send_part(outbox_, sent);
  outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(sent));
}

void ControlChannel::read() {
  std::array<std::uint8_t, 256> bytes;
  std::size_t got = bytes.size();
  for (std::size_t heard = 0; got == bytes.size() && heard < kMostHeard; heard += got) {
    got = 0;
    (void)socket_.recv_part(bytes, got);
    inbox_.insert(inbox_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got));
  }
}

std::optional<ControlMessage> ControlChannel::next(std::size_t& at) const {
  const auto rest = std::span(inbox_).subspan(at);
  if (rest.empty()) return std::nullopt;
  ControlMessage message;
  if (rest[0] != kFailoverByte || !frames_) {
    message.kind = kind_of_word(rest[0]);
    ++at;
    return message;
  }
  const std::size_t bytes = failover_frame_bytes(rest);
  if (bytes > kFailoverHeader + kMostFailoverBody) {
    message.kind = ControlMessage::Kind::nonsense;
    at = inbox_.size();
    return message;
  }
  if (bytes == 0 || rest.size() < bytes) return std::nullopt;
  message.kind = ControlMessage::Kind::frame;
  message.frame = static_cast<FailoverKind>(rest[1]);
  message.body = rest.subspan(kFailoverHeader, bytes - kFailoverHeader);
  at += bytes;
  return message;
}

}  // namespace twinpath
