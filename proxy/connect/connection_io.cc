// Frames of the handshake in and out, and how it ends badly.
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/connect/connection.h"

namespace twinpath {

// For readers of the counters.
counters::Identity Connection::identity() const {
  counters::Identity id = path_;
  put_name(id.peer_host, hellos_.theirs.host);
  put_name(id.peer_device, hellos_.theirs.device);
  if (hellos_.theirs.placement.gpu != kNoIndex) put_name(id.peer_gpu, hellos_.theirs.gpu);
  put_name(id.device, hellos_.mine.device);
  if (end_.record.gpu != kNoIndex) put_name(id.gpu, hellos_.mine.gpu);
  id.communicator = core_->settings.comm_id;
  id.session = core_->settings.serial;
  id.peer_pid = hellos_.theirs.pid;
  id.role = role_ == Role::connector ? counters::Role::sender : counters::Role::receiver;
  id.rails = static_cast<std::uint8_t>(rails_.size());
  id.standby = static_cast<std::uint8_t>(hellos_.mine.standby);
  for (std::size_t i = 0; i < rails_.size(); ++i)
    id.ports[i] = core_->devices->counted_port(rails_[i].port.port->name);
  return id;
}

Status Connection::send_frame(FrameType type, const std::vector<std::uint8_t>& body) {
  const Status s = frames_.send(socket_, type, body);
  return s == Status::ok || s == Status::again ? s : socket_ended(s);
}

Status Connection::recv_frame(FrameType type, FrameType or_else) {
  const Status s = frames_.receive(socket_);
  if (s == Status::again) return s;
  if (s == Status::bad_argument) {
    core_->strangers.tell(
        peer_text() + " sent bytes that belong to no connection of this listener; dropped",
        now_ns());
    return s;
  }
  if (s != Status::ok) return socket_ended(s);
  const FrameHeader& header = frames_.header();
  if (header.type == FrameType::refuse) {
    TP_WARN(
        "%s refused the connection from %s%s: %s", peer_text().c_str(),
        rail_text(rails_[0]).c_str(),
        hellos_.theirs.rails.empty() ? "" : (" to " + rail_text(hellos_.theirs.rails[0])).c_str(),
        decode_refusal(frames_.body()).c_str());
    return Status::remote;
  }
  if (header.version != kProtocolVersion)
    return refuse(Status::unsupported, "protocol versions differ: " + hellos_.mine.host +
                                           " has plugin " + hellos_.mine.version +
                                           " with protocol " + std::to_string(kProtocolVersion) +
                                           ", its peer protocol " + std::to_string(header.version) +
                                           "; install the same plugin version on all hosts");
  if (header.type != type && header.type != or_else)
    return refuse(Status::remote, "the handshake is out of order (message " +
                                      std::to_string(static_cast<int>(header.type)) +
                                      " instead of " + std::to_string(static_cast<int>(type)) +
                                      ")");
  return Status::ok;
}

bool Connection::call_again() {
  const bool unheard =
      step_ == Step::send_hello || (step_ == Step::recv_hello && !frames_.receiving());
  if (role_ != Role::connector || !unheard) return false;
  if (!unheard_.again(clock_.waited_ms(), core_->devices->config().connect_timeout_ms))
    return false;
  frames_.start_over();
  socket_.connect_anew();
  step_ = Step::connect_socket;
  return true;
}

Status Connection::socket_ended(Status s) {
  if (s == Status::system) return s;  // told, and no other call goes better
  if (call_again()) return Status::again;
  if (!peer_known()) {
    TP_INFO(net, "%s closed its connection before the handshake", peer_text().c_str());
    return Status::closed;
  }
  TP_WARN(
      "%s closed the connection from %s during the handshake (waiting for %s)%s; look for its own "
      "error message",
      peer_text().c_str(), rail_text(rails_[0]).c_str(), waiting_for(), unheard_.text().c_str());
  return s == Status::closed ? Status::remote : s;
}

Status Connection::refuse(Status s, const std::string& text) {
  TP_WARN("no connection from %s to %s: %s", rail_text(rails_[0]).c_str(), peer_text().c_str(),
          text.c_str());
  if (socket_.is_open() && step_ != Step::connect_socket) frames_.refuse(socket_, text);
  return s;
}

// The peer reads it, too, and its user may not see our log.
std::string Connection::remedy(Status s) const {
  const std::string where = " on " + hellos_.mine.host;
  return s == Status::no_memory
             ? where +
                   ": raise the limit of locked memory there (ulimit -l) or of memory (ulimit -v)"
             : where + "; its log names the device and the reason";
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
  if (hellos_.theirs.host.empty()) return text;
  return hellos_.peer_process() + " (" + text + "), " + hellos_.theirs.device;
}

}  // namespace twinpath
