// Frames of the handshake in and out, and how it ends badly.
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/connect/connection.h"

namespace twinpath {

// For readers of the counters.
counters::Identity Connection::identity() const {
  counters::Identity id = path_;
  put_name(id.peer_host, theirs_.host);
  put_name(id.peer_device, theirs_.device);
  if (theirs_.placement.gpu != kNoIndex) put_name(id.peer_gpu, theirs_.gpu);
  put_name(id.device, mine_.device);
  if (end_.record.gpu != kNoIndex) put_name(id.gpu, mine_.gpu);
  id.communicator = core_->settings.comm_id;
  id.session = core_->settings.serial;
  id.peer_pid = theirs_.pid;
  id.role = role_ == Role::connector ? counters::Role::sender : counters::Role::receiver;
  id.rails = static_cast<std::uint8_t>(rails_.size());
  id.standby = static_cast<std::uint8_t>(mine_.standby);
  for (std::size_t i = 0; i < rails_.size(); ++i)
    id.ports[i] = core_->devices->counted_port(rails_[i].port.port->name);
  return id;
}

Status Connection::send_frame(FrameType type, const std::vector<std::uint8_t>& body) {
  if (out_.empty()) {
    out_ = make_frame(type, nonce_, body);
    sent_ = 0;
  }
  const Status s = socket_.send_part(out_, sent_);
  if (s == Status::again) return s;
  out_.clear();
  return s == Status::ok ? s : socket_ended(s);
}

Status Connection::recv_frame(FrameType type) {
  if (header_got_ < header_bytes_.size()) {
    const Status s = socket_.recv_part(header_bytes_, header_got_);
    if (s == Status::again) return s;
    if (s != Status::ok) return socket_ended(s);
    TP_TRY(check_header());
    body_.assign(header_.body_bytes, 0);
    body_got_ = 0;
  }
  if (body_got_ < body_.size()) {
    const Status s = socket_.recv_part(body_, body_got_);
    if (s == Status::again) return s;
    if (s != Status::ok) return socket_ended(s);
  }
  header_got_ = 0;
  if (header_.type == FrameType::refuse) {
    TP_WARN("%s refused the connection from %s%s: %s", peer_text().c_str(),
            rail_text(rails_[0]).c_str(),
            theirs_.rails.empty() ? "" : (" to " + rail_text(theirs_.rails[0])).c_str(),
            decode_refusal(body_).c_str());
    return Status::remote;
  }
  if (header_.version != kProtocolVersion)
    return refuse(Status::unsupported,
                  "protocol versions differ: " + mine_.host + " has plugin " + mine_.version +
                      " with protocol " + std::to_string(kProtocolVersion) +
                      ", its peer protocol " + std::to_string(header_.version) +
                      "; install the same plugin version on all hosts");
  if (header_.type != type)
    return refuse(Status::remote, "the handshake is out of order (message " +
                                      std::to_string(static_cast<int>(header_.type)) +
                                      " instead of " + std::to_string(static_cast<int>(type)) +
                                      ")");
  return Status::ok;
}

Status Connection::check_header() {
  header_ = decode_header(header_bytes_);
  const bool ours = header_.magic == kFrameMagic && header_.nonce == nonce_;
  if (!ours || header_.body_bytes > kMaxFrameBody) {
    core_->strangers.tell(
        peer_text() + " sent bytes that belong to no connection of this listener; dropped",
        now_ns());
    return Status::bad_argument;
  }
  peer_known_ = true;
  return Status::ok;
}

Status Connection::check_rails() {
  const auto regular = [](const Hello& hello) {
    return std::span(hello.rails).first(static_cast<std::size_t>(hello.ends().regular));
  };
  for (const HelloRail& a : regular(mine_)) {
    for (const HelloRail& b : regular(theirs_)) {
      if (a.roce != b.roce)
        return refuse(Status::unsupported, a.port + " of " + mine_.host + " is " +
                                               (a.roce ? "Ethernet" : "InfiniBand") + " but " +
                                               b.port + " of " + theirs_.host + " is " +
                                               (b.roce ? "Ethernet" : "InfiniBand") +
                                               "; choose ports of one kind with NCCL_IB_HCA");
      // An adapter takes its own address for itself: the queues would write to this host, and
      // wait for ever.
      if (!another_host_ || !a.roce || std::memcmp(a.gid.raw, b.gid.raw, sizeof a.gid.raw) != 0)
        continue;
      return refuse(Status::system,
                    a.port + " of " + mine_.host + " and " + b.port + " of " + theirs_.host +
                        " have the same address " + gid_text(a.gid) + " (GID index " +
                        std::to_string(a.gid_index) + " and " + std::to_string(b.gid_index) +
                        "), which reaches neither from the other; choose another with "
                        "NCCL_IB_ADDR_RANGE or NCCL_IB_GID_INDEX, or take it off the interfaces");
    }
  }
  return Status::ok;
}

// A listener that strangers crowd drops whoever has not spoken yet, and may drop us with them when
// this process was away for a moment.  One that is gone refuses the next call.
bool Connection::call_again() {
  const bool unheard = step_ == Step::send_hello || (step_ == Step::recv_hello && header_got_ == 0);
  if (role_ != Role::connector || !unheard) return false;
  if (unheard_++ == 0) first_unheard_ms_ = clock_.waited_ms();
  if (clock_.waited_ms() - first_unheard_ms_ >= core_->devices->config().connect_timeout_ms)
    return false;
  out_.clear();
  socket_.connect_anew();
  step_ = Step::connect_socket;
  return true;
}

Status Connection::socket_ended(Status s) {
  if (s == Status::system) return s;  // told, and no other call goes better
  if (call_again()) return Status::again;
  if (!peer_known_) {
    TP_INFO(net, "%s closed its connection before the handshake", peer_text().c_str());
    return Status::closed;
  }
  TP_WARN(
      "%s closed the connection from %s during the handshake (waiting for %s)%s; look for its own "
      "error message",
      peer_text().c_str(), rail_text(rails_[0]).c_str(), waiting_for(), unheard_text().c_str());
  return s == Status::closed ? Status::remote : s;
}

Status Connection::refuse(Status s, const std::string& text) {
  TP_WARN("no connection from %s to %s: %s", rail_text(rails_[0]).c_str(), peer_text().c_str(),
          text.c_str());
  // Only between frames: inside one the peer would take it for the rest.
  if (socket_.is_open() && out_.empty() && step_ != Step::connect_socket) {
    const auto frame = make_frame(FrameType::refuse, nonce_, encode_refusal(text));
    std::size_t sent = 0;
    (void)socket_.send_part(frame, sent);
  }
  return s;
}

const char* Connection::waiting_for() const {
  switch (step_) {
    case Step::connect_socket:
      return "the TCP connection";
    case Step::recv_hello:
      return "the peer's hello";
    case Step::make_queues:
    case Step::raise_queues:
      return "the adapter to take a queue pair's address";
    case Step::recv_queues:
      return "the peer's queues";
    case Step::recv_ready:
      return "the peer to be ready";
    default:
      return "the socket to take bytes";
  }
}

std::string Connection::peer_text() const {
  std::string text = socket_.peer().text();
  if (theirs_.host.empty()) return text;
  return theirs_.host + " pid " + std::to_string(theirs_.pid) + " (" + text + "), " +
         theirs_.device;
}

}  // namespace twinpath
