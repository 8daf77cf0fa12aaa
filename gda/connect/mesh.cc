// Collective steps over the sockets of a Mesh, and noticing that a rank has gone.
#include "gda/connect/mesh.h"

#include <poll.h>

#include "gda/connect/mesh_wire.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

using mesh::Frame;
using mesh::FrameBytes;
using mesh::kFrameBytes;

namespace {

constexpr std::int64_t kAskEvery = 5 * kSecond;

}  // namespace

// Both directions of one socket in one step.
struct Mesh::Transfer {
  int rank = 0;
  TcpSocket* socket = nullptr;
  FrameBytes out_header{}, in_header{};
  Bytes out;
  std::vector<std::uint8_t> in;
  std::size_t out_header_done = 0, out_done = 0, in_header_done = 0, in_done = 0;

  bool sent() const { return out_header_done == kFrameBytes && out_done == out.size(); }
  bool received() const { return in_header_done == kFrameBytes && in_done == in.size(); }
  Status send() {
    TP_TRY(socket->send_part(out_header, out_header_done));
    return socket->send_part(out, out_done);
  }
};

Mesh::~Mesh() {
  const FrameBytes goodbye = mesh::encode({.magic = mesh::kGoodbyeMagic, .step = step_});
  for (Peer& peer : peers_) {
    // Best effort: a socket that takes no 16 bytes belongs to a rank in trouble of its own.
    peer.socket.leave(broken_ ? std::span<const std::uint8_t>() : goodbye);
  }
}

std::string Mesh::peer_text(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (rank < 0 || rank >= ranks()) return text;
  return text + " (" + peers_[static_cast<std::size_t>(rank)].address.text() + ")";
}

bool Mesh::on_this_host(int rank) const { return peers_[static_cast<std::size_t>(rank)].here; }

Result<std::vector<std::vector<std::uint8_t>>> Mesh::all_gather(std::span<const std::uint8_t> mine,
                                                                const char* what) {
  return exchange(std::vector<Bytes>(peers_.size(), mine), what);
}

Result<std::vector<std::vector<std::uint8_t>>> Mesh::all_to_all(
    const std::vector<std::vector<std::uint8_t>>& to, const char* what) {
  if (to.size() != peers_.size()) {
    TP_WARN("%s: data for %zu ranks, the communicator has %zu; this is a defect, please report it",
            what, to.size(), peers_.size());
    return Status::internal;
  }
  return exchange(std::vector<Bytes>(to.begin(), to.end()), what);
}

Result<std::vector<std::vector<std::uint8_t>>> Mesh::exchange(std::span<const Bytes> to,
                                                              const char* what) {
  if (broken_) return Status::remote;  // the step that broke it said why
  for (const Bytes bytes : to) {
    if (bytes.size() <= mesh::kMaxBody) continue;
    TP_WARN("%s: %zu bytes for one rank; at most %zu are possible", what, bytes.size(),
            mesh::kMaxBody);
    return Status::bad_argument;
  }
  const std::uint32_t tag = mesh::tag_of(what);
  std::vector<Transfer> transfers;
  transfers.reserve(peers_.size());
  for (int r = 0; r < ranks(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r == rank_) continue;
    Transfer& t = transfers.emplace_back();
    t.rank = r;
    t.socket = &peers_[i].socket;
    t.out = to[i];
    t.out_header = mesh::encode({.magic = mesh::kFrameMagic,
                                 .step = step_,
                                 .tag = tag,
                                 .bytes = static_cast<std::uint32_t>(t.out.size())});
  }
  const Status status = move(transfers, tag, what);
  ++step_;
  if (status != Status::ok) {
    broken_ = true;
    return status;
  }
  std::vector<std::vector<std::uint8_t>> all(peers_.size());
  const Bytes own = to[static_cast<std::size_t>(rank_)];
  all[static_cast<std::size_t>(rank_)].assign(own.begin(), own.end());
  for (Transfer& t : transfers) all[static_cast<std::size_t>(t.rank)] = std::move(t.in);
  return all;
}

// Every socket in both directions at once: no order of ranks, so nothing to deadlock on.
Status Mesh::move(std::vector<Transfer>& transfers, std::uint32_t tag, const char* what) {
  RunLimit limit(timeout_ns_);
  std::vector<pollfd> waiting;
  for (;;) {
    waiting.clear();
    for (Transfer& t : transfers) {
      if (!t.sent()) {
        const Status status = t.send();
        // The peer's last frame may still be readable although it is gone.
        if (status != Status::ok && status != Status::again && t.received())
          return lost(t.rank, what, status);
      }
      if (!t.received()) TP_TRY(receive(t, tag, what));
      const int events = (t.sent() ? 0 : POLLOUT) | (t.received() ? 0 : POLLIN);
      if (events != 0) waiting.push_back({t.socket->fd(), static_cast<short>(events), 0});
    }
    if (waiting.empty()) return Status::ok;
    if (limit.over(now_ns())) return late(transfers, what);
    (void)::poll(waiting.data(), waiting.size(),
                 static_cast<int>(limit.look_again() / kMillisecond + 1));
  }
}

Status Mesh::receive(Transfer& t, std::uint32_t tag, const char* what) {
  if (t.in_header_done < kFrameBytes) {
    const Status status = t.socket->recv_part(t.in_header, t.in_header_done);
    if (status == Status::again) return Status::ok;
    if (status != Status::ok) return lost(t.rank, what, status);
    const Frame frame = mesh::decode(t.in_header);
    if (frame.magic == mesh::kGoodbyeMagic) {
      TP_WARN("%s: %s has closed its communicator; all ranks must take part", what,
              peer_text(t.rank).c_str());
      return Status::closed;
    }
    if (frame.magic != mesh::kFrameMagic || frame.step != step_ || frame.tag != tag ||
        frame.bytes > mesh::kMaxBody) {
      TP_WARN(
          "%s: %s is at another step (its number %u, ours %u); all ranks must make the same calls "
          "in the same order, with the same version of the plugin",
          what, peer_text(t.rank).c_str(), frame.step, step_);
      return Status::remote;
    }
    t.in.resize(frame.bytes);
  }
  const Status status = t.socket->recv_part(t.in, t.in_done);
  if (status == Status::ok || status == Status::again) return Status::ok;
  return lost(t.rank, what, status);
}

Status Mesh::lost(int rank, const char* what, Status status) const {
  const std::string why = peers_[static_cast<std::size_t>(rank)].socket.end_text();
  if (status == Status::closed)
    TP_WARN("%s: %s is gone: its end of the control connection was closed; see its log", what,
            peer_text(rank).c_str());
  else
    TP_WARN("%s: %s cannot be reached any more (%s); see its log", what, peer_text(rank).c_str(),
            why.c_str());
  return status;
}

Status Mesh::late(const std::vector<Transfer>& transfers, const char* what) const {
  std::string missing;
  for (const Transfer& t : transfers) {
    if (!t.sent() || !t.received()) missing += (missing.empty() ? "" : ", ") + peer_text(t.rank);
  }
  TP_WARN(
      "%s: no answer within %lld ms from %s; see their logs, or raise "
      "TWINPATH_CONNECT_TIMEOUT_MS",
      what, static_cast<long long>(timeout_ns_ / kMillisecond), missing.c_str());
  return Status::remote;
}

Mesh::PeerState Mesh::look(int rank) const {
  const TcpSocket& socket = peers_[static_cast<std::size_t>(rank)].socket;
  if (!socket.is_open()) return {};
  // What kernels wait for is not seen, so a peer is asked always; not often, for there may be many.
  const std::int64_t now = now_ns();
  socket.ask(now, kAskEvery);
  PeerState state{.sign = socket.look()};
  if (state.sign == PeerSign::quiet) state.silence_ms = socket.owed_ms(now);
  if (state.sign != PeerSign::talking) return state;
  state.sign = PeerSign::quiet;
  FrameBytes bytes{};
  const ssize_t n = ::recv(socket.fd(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  state.left =
      n == static_cast<ssize_t>(bytes.size()) && mesh::decode(bytes).magic == mesh::kGoodbyeMagic;
  if (state.left) return state;
  // A frame instead, and the end behind it: it was in a step that cannot end, so it did not leave
  // in good order.
  pollfd p{socket.fd(), POLLRDHUP, 0};
  if (::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
    state.sign = (p.revents & POLLERR) != 0 ? PeerSign::reset : PeerSign::ended;
  else
    state.silence_ms = socket.owed_ms(now);
  return state;
}

void Mesh::give_up() const {
  for (const Peer& peer : peers_) peer.socket.end_words();
}

int Mesh::dead_peer() const {
  for (int r = 0; r < ranks(); ++r) {
    const PeerSign sign = look(r).sign;
    if (sign == PeerSign::ended || sign == PeerSign::reset) return r;
  }
  return -1;
}

std::string Mesh::verdict_text(int rank, Verdict verdict) const {
  const TcpSocket& socket = peers_[static_cast<std::size_t>(rank)].socket;
  switch (verdict) {
    case Verdict::ended:
      return "its process ended without closing its communicator, or gave it up (see its log)";
    case Verdict::reset:
      return "its host reset the control connection (" + socket.end_text() +
             "): its process was killed, or the host was started anew";
    case Verdict::silent:
      return "its host does not answer: no sign of life on the control connection for " +
             std::to_string(socket.silence_ms()) +
             " ms, nor on the data path; it has crashed or is cut off; if it lives, look at the "
             "control network, here " +
             socket.local_text() + " (NCCL_SOCKET_IFNAME chooses it), and at the data network";
    case Verdict::fine:
    case Verdict::suspect:
      break;
  }
  return "it is alive";
}

}  // namespace twinpath::gda
