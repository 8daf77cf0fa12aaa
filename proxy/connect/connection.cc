#include "proxy/connect/connection.h"

#include <unistd.h>

#include <limits>

#include "plugin/base/clock.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "proxy/connect/subnet_choice.h"

namespace twinpath {
namespace {

// Our clock says when it is enough.
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

}  // namespace

Connection::Connection(Role role, std::shared_ptr<SessionCore> core, int device,
                       std::vector<Rail> rails, const Nonce& nonce, TcpSocket socket,
                       std::int64_t hello_limit)
    : role_(role),
      core_(std::move(core)),
      frames_(nonce),
      hello_clock_(hello_limit),
      clock_(core_->devices->config().connect_timeout_ms),
      socket_(std::move(socket)),
      step_(role == Role::connector ? Step::connect_socket : Step::recv_hello) {
  if (role_ == Role::acceptor) socket_.set_control_options();
  hellos_.mine.version = TWINPATH_VERSION;
  hellos_.mine.host = host_name();
  hellos_.mine.pid = static_cast<std::uint32_t>(::getpid());
  hellos_.mine.qps_per_connection = static_cast<std::uint16_t>(
      core_->expected.queues(core_->devices->config().ib_qps_per_connection));
  hellos_.mine.session = core_->shared.session();
  // Callers without a context are no communicator: one's failure is none of the others'.
  if (core_->settings.comm_id != 0)
    hellos_.mine.shared_pairs = static_cast<std::uint8_t>(core_->devices->config().qps_per_peer);
  if (core_->devices->config().failover) hellos_.mine.capabilities |= kCanFailOver;
  use(device, std::move(rails));
}

void Connection::use(int device, std::vector<Rail> rails) {
  device_ = device;
  rails_ = std::move(rails);
  if (auto props = core_->devices->properties(device_)) hellos_.mine.device = props->name;
  hellos_.mine.standby = 0;
  // One that has no address now may have one when it is needed.
  for (const RailPort& port : core_->devices->standby(device_)) {
    std::string why;
    auto now = core_->devices->live(port, why);
    rails_.push_back(now ? Rail::of(port, *now) : Rail{.port = port});
    ++hellos_.mine.standby;
  }
  hellos_.mine.rails.clear();
  for (const Rail& rail : rails_) hellos_.mine.rails.push_back(rail.hello());
  end_ = core_->devices->placement(device_);
  end_.names.host = hellos_.mine.host;
  hellos_.mine.gpu = end_.names.gpu;
  hellos_.mine.placement = end_.record;
  parts_.near_rails = core_->devices->nearest_rails(device_);
}

Status Connection::advance() {
  const Status s = run();
  return s == Status::again ? wait_on() : s;
}

// Nothing more to be done now.  A peer may take as long as it likes while its host answers.
Status Connection::wait_on() {
  const std::int64_t now = now_ns();
  if (role_ == Role::acceptor && step_ == Step::recv_hello) {
    if (!hello_clock_.over(now)) return Status::again;
    if (peer_known()) return give_up();
    core_->strangers.tell(peer_text() + " opened a connection but said nothing; dropped", now);
    return Status::remote;
  }
  const bool connected = step_ != Step::connect_socket;
  if (connected) socket_.ask(now, kSecond);
  switch (clock_.look(now, connected ? socket_.owed_ms(now) : MakingClock::kNoConnection)) {
    case MakingClock::Verdict::wait:
      return Status::again;
    case MakingClock::Verdict::tell:
      tell_wait();
      return Status::again;
    case MakingClock::Verdict::give_up:
      break;
  }
  return give_up();
}

Status Connection::give_up() {
  std::string text = "the connection timed out after " +
                     std::to_string(core_->devices->config().connect_timeout_ms) +
                     " ms while waiting for " + waiting_for();
  if (!unreached_.empty()) text += " (" + unreached_ + ")";
  text += unheard_.text();
  if (step_ == Step::connect_socket) {
    text += "; do hosts reach each other over NCCL_SOCKET_IFNAME?";
    if (socket_.is_open()) text += " It was tried from " + socket_.local_text() + ".";
  } else if (role_ == Role::connector || step_ != Step::recv_hello) {
    text += "; its host does not answer on the control connection, here " + socket_.local_text() +
            ": it has crashed or is cut off";
  }
  return refuse(Status::remote,
                text + "; raise TWINPATH_CONNECT_TIMEOUT_MS if the peer is only slow");
}

// A job with one slow rank has many such connections; one of them is told of aloud.
void Connection::tell_wait() const {
  const std::string text = "still connecting from " + rail_text(rails_[0]) + " to " + peer_text() +
                           " after " + std::to_string(clock_.waited_ms() / 1000) +
                           " s, waiting for " + waiting_for() + unheard_.text() +
                           "; its host answers, so its process is busy or stopped (see its log); "
                           "going on";
  if (const auto more = core_->waits.tell(now_ns()))
    TP_WARN("%s%s", text.c_str(),
            *more == 0 ? "" : (" (and " + std::to_string(*more) + " more such waits)").c_str());
  else
    TP_INFO(net, "%s", text.c_str());
}

Status Connection::run() {
  const bool first = role_ == Role::connector;
  for (;;) {
    switch (step_) {
      case Step::connect_socket:
        TP_TRY(connect_socket());
        step_ = Step::send_hello;
        break;
      case Step::send_hello:
        TP_TRY(send_hello());
        // What an acceptor shares the connector has chosen.
        step_ = first                         ? Step::recv_hello
                : hellos_.shared_pairs() == 0 ? Step::make_queues
                                              : Step::recv_queues;
        break;
      case Step::recv_hello:
        TP_TRY(recv_hello());
        if (turned_away()) return refuse(Status::system, turned_away_);
        step_ = first ? Step::make_queues : Step::send_hello;
        break;
      case Step::make_queues:
        TP_TRY(make_queues());
        if (first) {
          step_ = Step::send_queues;
        } else if (said_.theirs.queues.empty()) {
          step_ = Step::recv_queues;
        } else {
          TP_TRY(check_queues());
          step_ = Step::raise_queues;
        }
        break;
      case Step::send_queues:
        TP_TRY(send_queues());
        step_ = first ? Step::recv_queues : Step::send_ready;
        break;
      case Step::recv_queues:
        TP_TRY(recv_queues());
        if (queues_ == nullptr) {
          step_ = !first && names_failed_sets() ? Step::send_other_sets : Step::make_queues;
          break;
        }
        TP_TRY(check_queues());
        step_ = Step::raise_queues;
        break;
      case Step::raise_queues:
        TP_TRY(raise_queues());
        // The connector has waited: what its adapter may use is settled by the acceptor's.
        step_ = first ? Step::send_ready : Step::send_queues;
        break;
      case Step::send_other_sets:
        TP_TRY(send_frame(FrameType::other_sets, {}));
        said_ = {};
        step_ = Step::recv_queues;
        break;
      case Step::send_ready:
        TP_TRY(send_frame(FrameType::ready, {}));
        step_ = Step::recv_ready;
        break;
      case Step::recv_ready:
        TP_TRY(recv_frame(FrameType::ready));
        parts_.link = std::make_unique<PeerLink>(
            std::move(queues_), std::move(place_), std::move(socket_),
            PeerName{peer_text(), hellos_.peer_process(), hellos_.theirs.rails,
                     hellos_.theirs.ends().regular},
            PeerMemory{parts_.remote_memory, parts_.remote_rkeys},
            core_->devices->count(identity()), hellos_.can_fail_over());
        step_ = Step::done;
        break;
      case Step::done:
        return Status::ok;
    }
  }
}

Status Connection::connect_socket() {
  const Status s = socket_.finish_connect(unreached_, kForEver);
  if (s == Status::ok) {
    unreached_.clear();
    socket_.set_control_options();
  } else if (s != Status::again)
    TP_WARN(
        "cannot connect from %s to %s: %s; has the peer's process ended? do hosts reach each other "
        "over NCCL_SOCKET_IFNAME?",
        rail_text(rails_[0]).c_str(), peer_text().c_str(), unreached_.c_str());
  return s;
}

Status Connection::send_hello() { return send_frame(FrameType::hello, encode_hello(hellos_.mine)); }

Status Connection::recv_hello() {
  TP_TRY(recv_frame(FrameType::hello));
  std::string why;
  if (!decode_hello(frames_.body(), hellos_.theirs, why)) return refuse(Status::remote, why);
  if (role_ == Role::acceptor) TP_TRY(choose_device());
  if (const Status s = hellos_.check_rails(another_host_, why); s != Status::ok)
    return refuse(s, why);
  decide_mode();
  return Status::ok;
}

Status Connection::choose_device() {
  DeviceAddresses theirs;
  for (const HelloRail& rail : std::span(hellos_.theirs.rails)
                                   .first(static_cast<std::size_t>(hellos_.theirs.ends().regular)))
    if (rail.roce) theirs.push_back(rail.gid);
  const int device = device_for(*core_->devices, device_, theirs);
  if (device == device_) return Status::ok;
  auto rails = choose_rails(*core_->devices, device);
  if (!rails) return refuse(rails.status(), "a port has no address" + remedy(rails.status()));
  use(device, std::move(rails).take());
  return Status::ok;
}

void Connection::decide_mode() {
  const Decision d = decide(end_.record, hellos_.theirs.placement, {Pattern::bulk, false});
  const bool sender = role_ == Role::connector;
  // Data of this connection flow one way only.
  // An end whose process has no CUDA driver (kCanStage) has no GPU memory to plan for.
  if (end_.record.can(kCanStage)) parts_.plan = sender ? d.send.source : d.recv.landing;
  parts_.peer_stages =
      !sender && hellos_.theirs.placement.can(kCanStage) && d.recv.source.direct_max != kAnySize;
  // Without GPUs nothing was decided.
  put_name(path_.path, "HOST");
  if (end_.record.gpu == kNoIndex && hellos_.theirs.placement.gpu == kNoIndex) return;
  const Direction& way = sender ? d.send : d.recv;
  put_name(path_.path, name_of(way.mode));
  std::string why =
      std::string(code_of(way.source.reason)) + " " + std::string(code_of(way.landing.reason));
  if (way.need != Reason::none)
    why += ", " + std::string(name_of(way.next)) + " lacks " + std::string(code_of(way.need));
  put_name(path_.reason, why);
  core_->decisions.tell(hellos_.theirs.host + "/" + std::to_string(hellos_.theirs.pid), d,
                        end_.record, hellos_.theirs.placement, end_.names,
                        {hellos_.theirs.host, hellos_.theirs.gpu, hellos_.theirs.device});
}

}  // namespace twinpath
