// Making the sockets of a Mesh: one round of poll() over everything under way, until every rank
// is there, one has failed, or time is up.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <optional>

#include "gda/connect/mesh.h"
#include "gda/connect/mesh_wire.h"
#include "plugin/base/clock.h"
#include "plugin/base/hearing_time.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {
namespace {

// Callers that have said nothing yet must not use up the open files.
constexpr std::size_t kMoreCallers = 64;

}  // namespace

Result<std::unique_ptr<MeshListener>> MeshListener::open(const Config& config, HandleBytes handle) {
  auto interface = control_interface(config);
  if (!interface) return interface.status();
  auto socket = TcpListener::open(*interface);
  if (!socket) return socket.status();
  Handle mine;
  mine.nonce = random_nonce();
  mine.address = socket->address();
  mine.host_hash = host_hash();
  mine.pid = static_cast<std::uint32_t>(::getpid());
  encode_handle(mine, handle);
  return std::unique_ptr<MeshListener>(new MeshListener(std::move(socket).take(), mine.nonce));
}

// The state of one Mesh::connect.
class MeshBuilder {
 public:
  MeshBuilder(const Config& config, MeshListener& listener, int rank, std::size_t ranks)
      : config_(config),
        listener_(listener),
        mesh_(new Mesh(rank, static_cast<int>(ranks))),
        missing_(ranks - 1),
        limit_(config.connect_timeout_ms * kMillisecond) {
    mesh_->timeout_ns_ = config.connect_timeout_ms * kMillisecond;
  }

  Status start(std::span<const std::array<std::uint8_t, kHandleBytes>> handles);
  Status run();
  std::unique_ptr<Mesh> take() { return std::move(mesh_); }

 private:
  // To a lower rank.
  struct Outgoing {
    int rank = 0;
    Nonce nonce{};
    TcpSocket socket;
    bool connected = false;
    std::vector<std::uint8_t> hello;
    std::size_t hello_done = 0;
    std::array<std::uint8_t, mesh::kWelcomeBytes> welcome{};
    std::size_t welcome_done = 0;
  };
  // From somebody who has not said who he is.
  struct Incoming {
    TcpSocket socket;
    std::array<std::uint8_t, mesh::kHelloBytes> hello{};
    std::size_t done = 0;
    std::int64_t since = 0;  // hearing_.begin()
  };

  Mesh::Peer& peer(int rank) { return mesh_->peers_[static_cast<std::size_t>(rank)]; }
  bool waits_for_callers() const;
  Status advance(Outgoing& out);
  Status failed(const Outgoing& out, const std::string& why) const;
  Status take_callers();
  Status hear_all();
  bool has_room();
  // nullopt: more bytes to come.
  std::optional<Status> hear(Incoming& in);
  Status welcome(Incoming& in, int rank, std::uint32_t ranks);
  void wait();
  Status late() const;

  const Config& config_;
  MeshListener& listener_;
  std::unique_ptr<Mesh> mesh_;
  std::size_t missing_;
  RunLimit limit_;
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;  // the oldest first
  HearingTime hearing_;
  std::int64_t crowded_until_ = 0;  // now_ns(): no more callers before; 0: there is room
};

Status MeshBuilder::start(std::span<const std::array<std::uint8_t, kHandleBytes>> handles) {
  const std::uint64_t own_host = host_hash();
  for (std::size_t r = 0; r < handles.size(); ++r) {
    const int rank = static_cast<int>(r);
    Handle handle;
    std::string why;
    if (!decode_handle(handles[r], handle, why)) {
      TP_WARN("connect: handle of rank %d: %s", rank, why.c_str());
      return Status::bad_argument;
    }
    peer(rank).address = handle.address;
    peer(rank).here = handle.host_hash == own_host;
    if (rank == mesh_->rank() && handle.nonce != listener_.nonce()) {
      TP_WARN(
          "connect: the handle of rank %d, the own one, is not this listener's; NCCL passed "
          "another listener or another rank",
          rank);
      return Status::bad_argument;
    }
    if (rank >= mesh_->rank()) continue;
    use_own_scope(handle.address, config_);
    auto socket = TcpSocket::connect(handle.address);
    if (!socket) return socket.status();
    Outgoing& out = outgoing_.emplace_back();
    out.rank = rank;
    out.socket = std::move(socket).take();
    Writer w;
    w.integer(mesh::kHelloMagic);
    w.integer(mesh::kVersion);
    w.integer(std::uint16_t{0});
    w.raw(handle.nonce.data(), handle.nonce.size());
    w.integer(static_cast<std::uint32_t>(mesh_->rank()));
    w.integer(static_cast<std::uint32_t>(mesh_->ranks()));
    out.hello = w.take();
  }
  return Status::ok;
}

bool MeshBuilder::waits_for_callers() const { return missing_ > outgoing_.size(); }

Status MeshBuilder::run() {
  while (missing_ > 0) {
    for (auto it = outgoing_.begin(); it != outgoing_.end();) {
      const Status status = advance(*it);
      if (status != Status::ok && status != Status::again) return status;
      const auto now = it++;
      if (status == Status::ok) outgoing_.erase(now);
    }
    if (waits_for_callers()) TP_TRY(take_callers());
    if (missing_ == 0) break;
    if (limit_.over(now_ns())) return late();
    wait();
  }
  return Status::ok;
}

Status MeshBuilder::failed(const Outgoing& out, const std::string& why) const {
  TP_WARN("connect: %s: %s; see its log, and NCCL_SOCKET_IFNAME for the interface to use",
          mesh_->peer_text(out.rank).c_str(), why.c_str());
  return Status::remote;
}

Status MeshBuilder::advance(Outgoing& out) {
  if (!out.connected) {
    std::string why;
    const std::int64_t now = now_ns();
    const Status status = out.socket.finish_connect(why, now + limit_.left(now));
    if (status == Status::again) return status;
    if (status != Status::ok) return failed(out, why);
    out.socket.set_control_options();
    out.connected = true;
  }
  Status status = out.socket.send_part(out.hello, out.hello_done);
  if (status == Status::ok) status = out.socket.recv_part(out.welcome, out.welcome_done);
  if (status == Status::again || status == Status::system) return status;
  if (status != Status::ok && out.welcome_done == 0 && !limit_.over(now_ns())) {
    // Crowded by strangers, it drops whoever has not spoken yet; one that is gone refuses.
    out.socket.connect_anew();
    out.connected = false;
    out.hello_done = 0;
    return Status::again;
  }
  if (status != Status::ok) return failed(out, "closed the connection while it was being made");
  Reader r(out.welcome);
  if (r.integer<std::uint32_t>() != mesh::kWelcomeMagic ||
      r.integer<std::uint32_t>() != static_cast<std::uint32_t>(out.rank))
    return failed(out, "its answer is not one of this plugin's");
  peer(out.rank).socket = std::move(out.socket);
  --missing_;
  return Status::ok;
}

// The oldest caller makes room for who waits, when all have been heard and it had time to say
// hello.
bool MeshBuilder::has_room() {
  crowded_until_ = 0;
  if (incoming_.size() < 2 * mesh_->peers_.size() + kMoreCallers) return true;
  pollfd waiting{listener_.socket().fd(), POLLIN, 0};
  if (::poll(&waiting, 1, 0) != 1) return false;
  const Incoming& oldest = incoming_.front();
  if (!hearing_.over(oldest.since)) {
    crowded_until_ = now_ns() + HearingTime::kLookAgain;
    return false;
  }
  TP_INFO(net, "connection from %s dropped: it said nothing while others wait",
          oldest.socket.peer().text().c_str());
  incoming_.pop_front();
  return true;
}

Status MeshBuilder::take_callers() {
  // Before anybody is dropped: some may have spoken since.
  TP_TRY(hear_all());
  hearing_.look(now_ns());
  while (missing_ > 0 && has_room()) {
    auto socket = listener_.socket().accept();
    if (!socket && socket.status() != Status::again) return socket.status();
    if (!socket) break;
    Incoming& in = incoming_.emplace_back();
    in.socket = std::move(socket).take();
    in.since = hearing_.begin();
  }
  return hear_all();
}

Status MeshBuilder::hear_all() {
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    const std::optional<Status> heard = hear(*it);
    const auto now = it++;
    if (heard) incoming_.erase(now);
    if (heard && *heard != Status::ok) return *heard;
  }
  return Status::ok;
}

std::optional<Status> MeshBuilder::hear(Incoming& in) {
  const Status status = in.socket.recv_part(in.hello, in.done);
  if (status == Status::again) return std::nullopt;
  if (status == Status::system) return status;
  const std::string who = in.socket.peer().text();
  const auto stranger = [&](const char* why) {
    TP_INFO(net, "connection from %s dropped: %s", who.c_str(), why);
    return Status::ok;
  };
  if (status != Status::ok) return stranger("it ended before a hello");
  Reader r(in.hello);
  const auto magic = r.integer<std::uint32_t>();
  const auto version = r.integer<std::uint16_t>();
  r.skip(2);
  Nonce nonce{};
  r.raw(nonce.data(), nonce.size());
  const auto rank = r.integer<std::uint32_t>();
  const auto ranks = r.integer<std::uint32_t>();
  if (magic != mesh::kHelloMagic) return stranger("not a hello of this plugin");
  // The nonce went to members of this communicator only: from here on a fault is ours to tell.
  if (nonce != listener_.nonce()) return stranger("it asks for another listener");
  if (version != mesh::kVersion) {
    TP_WARN(
        "connect: rank %u (%s) speaks version %u, this side %u; install the same plugin on all "
        "hosts",
        rank, who.c_str(), static_cast<unsigned>(version), static_cast<unsigned>(mesh::kVersion));
    return Status::remote;
  }
  if (rank >= mesh_->peers_.size() || static_cast<int>(rank) <= mesh_->rank()) {
    TP_WARN("connect: rank %u of %u (%s) called rank %d of %d; only higher ranks call lower ones",
            rank, ranks, who.c_str(), mesh_->rank(), mesh_->ranks());
    return Status::remote;
  }
  return welcome(in, static_cast<int>(rank), ranks);
}

Status MeshBuilder::welcome(Incoming& in, int rank, std::uint32_t ranks) {
  if (ranks != mesh_->peers_.size() || peer(rank).socket.is_open()) {
    TP_WARN("connect: rank %d of %u (%s): %s", rank, ranks, in.socket.peer().text().c_str(),
            peer(rank).socket.is_open() ? "called twice; two processes have the same rank"
                                        : "has another number of ranks");
    return Status::remote;
  }
  in.socket.set_control_options();
  Writer w;
  w.integer(mesh::kWelcomeMagic);
  w.integer(static_cast<std::uint32_t>(mesh_->rank()));
  std::size_t done = 0;
  // The first 8 bytes on a new connection always go at once.
  if (in.socket.send_part(w.bytes(), done) != Status::ok) {
    TP_WARN("connect: %s went away while it was being connected; see its log",
            mesh_->peer_text(rank).c_str());
    return Status::remote;
  }
  peer(rank).socket = std::move(in.socket);
  --missing_;
  return Status::ok;
}

void MeshBuilder::wait() {
  std::vector<pollfd> fds;
  if (waits_for_callers() && crowded_until_ == 0)
    fds.push_back({listener_.socket().fd(), POLLIN, 0});
  for (const Outgoing& out : outgoing_) {
    const bool sending = !out.connected || out.hello_done < out.hello.size();
    fds.push_back({out.socket.fd(), static_cast<short>(sending ? POLLOUT : POLLIN), 0});
  }
  for (const Incoming& in : incoming_) fds.push_back({in.socket.fd(), POLLIN, 0});
  std::int64_t until = now_ns() + limit_.look_again();
  if (crowded_until_ != 0) until = std::min(until, crowded_until_);
  // A host that could not be reached is tried anew, of which no descriptor tells.
  for (const Outgoing& out : outgoing_)
    if (!out.socket.is_open()) until = std::min(until, now_ns() + 100 * kMillisecond);
  const std::int64_t left = std::max<std::int64_t>(until - now_ns(), 0);
  (void)::poll(fds.data(), fds.size(), static_cast<int>(left / kMillisecond + 1));
}

Status MeshBuilder::late() const {
  std::string missing;
  for (int r = 0; r < mesh_->ranks(); ++r) {
    if (r == mesh_->rank() || mesh_->peers_[static_cast<std::size_t>(r)].socket.is_open()) continue;
    missing += (missing.empty() ? "" : ", ") + mesh_->peer_text(r);
  }
  TP_WARN(
      "connect: no connection within %lld ms with %s; see their logs, or raise "
      "TWINPATH_CONNECT_TIMEOUT_MS",
      static_cast<long long>(mesh_->timeout_ns_ / kMillisecond), missing.c_str());
  return Status::remote;
}

Result<std::unique_ptr<Mesh>> Mesh::connect(
    const Config& config, MeshListener& listener,
    std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= handles.size()) {
    TP_WARN("connect: rank %d of %zu", rank, handles.size());
    return Status::bad_argument;
  }
  MeshBuilder builder(config, listener, rank, handles.size());
  TP_TRY(builder.start(handles));
  TP_TRY(builder.run());
  return builder.take();
}

}  // namespace twinpath::gda
