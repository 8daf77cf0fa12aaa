#include "proxy/connect/frame_exchange.h"

namespace twinpath {

Status FrameExchange::send(TcpSocket& socket, FrameType type, std::span<const std::uint8_t> body) {
  if (out_.empty()) {
    out_ = make_frame(type, nonce_, body);
    sent_ = 0;
  }
  const Status s = socket.send_part(out_, sent_);
  if (s != Status::again) out_.clear();
  return s;
}

Status FrameExchange::receive(TcpSocket& socket) {
  if (header_got_ < header_bytes_.size()) {
    TP_TRY(socket.recv_part(header_bytes_, header_got_));
    header_ = decode_header(header_bytes_);
    // The length is anybody's word until the nonce is right, and memory is taken for it.
    if (header_.magic != kFrameMagic || header_.nonce != nonce_ ||
        header_.body_bytes > kMaxFrameBody)
      return Status::bad_argument;
    heard_ = true;
    body_.assign(header_.body_bytes, 0);
    body_got_ = 0;
  }
  if (body_got_ < body_.size()) TP_TRY(socket.recv_part(body_, body_got_));
  header_got_ = 0;
  return Status::ok;
}

void FrameExchange::refuse(TcpSocket& socket, std::string_view text) {
  if (!out_.empty()) return;
  const auto frame = make_frame(FrameType::refuse, nonce_, encode_refusal(text));
  std::size_t sent = 0;
  (void)socket.send_part(frame, sent);
}

}  // namespace twinpath
