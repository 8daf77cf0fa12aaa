#include "proxy/connect/connection.h"

#include <unistd.h>

#include <cstring>
#include <limits>

#include "plugin/base/clock.h"
#include "plugin/base/host.h"
#include "plugin/base/log.h"
#include "proxy/connect/subnet_choice.h"
#include "proxy/queues/depths.h"
#include "proxy/queues/ece.h"
#include "proxy/queues/receive_queue.h"
#include "proxy/wire/parcel.h"
#include "proxy/wire/stripe.h"

namespace twinpath {
namespace {

// Our clock says when it is enough.
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

}  // namespace

QueueSettings queue_settings(bool sender, const Config& config, const CommSettings& settings,
                             bool sender_stages, bool splits) {
  QueueSettings s = path_settings(config, settings);
  s.access = IBV_ACCESS_REMOTE_WRITE;
  s.send_depth = sender ? kSendDepth : kRecvSendDepth + kProbeDepth;
  s.recv_depth = sender ? 1 : kRecvDepth;
  if (sender && splits) s.send_depth += kSplitWrites;
  if (sender_stages) {
    s.send_depth += sender ? kStagedWrites : 0;
    s.recv_depth += sender ? 0 : kStagedReceives;
  }
  s.inline_bytes = sender ? kInlineData : kInlineCts;
  // Receivers send clear-to-sends only, which may have a class of their own.
  if (!sender && config.ib_fifo_tc >= 0)
    s.roce.traffic_class = s.infiniband.traffic_class =
        static_cast<std::uint8_t>(config.ib_fifo_tc);
  return s;
}

std::size_t split_above(const Config& config, bool roce) {
  const bool adaptive = config.ib_adaptive_routing < 0 ? !roce : config.ib_adaptive_routing != 0;
  return adaptive ? static_cast<std::size_t>(config.ib_ar_threshold) : SIZE_MAX;
}

Connection::Connection(Role role, std::shared_ptr<SessionCore> core, int device,
                       std::vector<Rail> rails, const Nonce& nonce, TcpSocket socket,
                       std::int64_t hello_limit)
    : role_(role),
      core_(std::move(core)),
      nonce_(nonce),
      hello_limit_(hello_limit),
      clock_(core_->devices->config().connect_timeout_ms),
      socket_(std::move(socket)),
      step_(role == Role::connector ? Step::connect_socket : Step::recv_hello),
      peer_known_(role == Role::connector) {
  if (role_ == Role::acceptor) socket_.set_control_options();
  mine_.version = TWINPATH_VERSION;
  mine_.host = host_name();
  mine_.pid = static_cast<std::uint32_t>(::getpid());
  mine_.qps_per_connection = static_cast<std::uint16_t>(
      core_->expected.queues(core_->devices->config().ib_qps_per_connection));
  if (core_->devices->config().failover) mine_.capabilities |= kCanRecover;
  use(device, std::move(rails));
}

void Connection::use(int device, std::vector<Rail> rails) {
  device_ = device;
  rails_ = std::move(rails);
  if (auto props = core_->devices->properties(device_)) mine_.device = props->name;
  mine_.standby = 0;
  // One that has no address now may have one when it is needed.
  for (const RailPort& port : core_->devices->standby(device_)) {
    std::string why;
    auto now = core_->devices->live(port, why);
    rails_.push_back(now ? Rail::of(port, *now) : Rail{.port = port});
    ++mine_.standby;
  }
  mine_.rails.clear();
  for (const Rail& rail : rails_) mine_.rails.push_back(rail.hello());
  end_ = core_->devices->placement(device_);
  end_.names.host = mine_.host;
  mine_.gpu = end_.names.gpu;
  mine_.placement = end_.record;
  parts_.near_rails = core_->devices->nearest_rails(device_);
}

Status Connection::advance() {
  const Status s = run();
  return s == Status::again ? wait_on() : s;
}

// Nothing more to be done now.  Who has not said his hello may be anybody, and has a limit; a peer
// may take as long as it likes while its host answers.
Status Connection::wait_on() {
  const std::int64_t now = now_ns();
  if (role_ == Role::acceptor && step_ == Step::recv_hello) {
    if (hello_clock_.look(now) < hello_limit_) return Status::again;
    if (peer_known_) return give_up();
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
  text += unheard_text();
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

std::string Connection::unheard_text() const {
  if (unheard_ == 0) return {};
  return "; the listener closed " + std::to_string(unheard_) +
         " calls without a word: it is crowded by strangers, or another program's";
}

// A job with one slow rank has many such connections; one of them is told of aloud.
void Connection::tell_wait() const {
  const std::string text = "still connecting from " + rail_text(rails_[0]) + " to " + peer_text() +
                           " after " + std::to_string(clock_.waited_ms() / 1000) +
                           " s, waiting for " + waiting_for() + unheard_text() +
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
        step_ = first ? Step::recv_hello : Step::make_queues;
        break;
      case Step::recv_hello:
        TP_TRY(recv_hello());
        if (turned_away()) return refuse(Status::system, turned_away_);
        step_ = first ? Step::make_queues : Step::send_hello;
        break;
      case Step::make_queues:
        TP_TRY(make_queues());
        step_ = first ? Step::send_queues : Step::recv_queues;
        break;
      case Step::send_queues:
        TP_TRY(send_queues());
        step_ = first ? Step::recv_queues : Step::send_ready;
        break;
      case Step::recv_queues:
        TP_TRY(recv_queues());
        step_ = Step::raise_queues;
        break;
      case Step::raise_queues:
        TP_TRY(raise_queues());
        // The connector has waited: what its adapter may use is settled by the acceptor's.
        step_ = first ? Step::send_ready : Step::send_queues;
        break;
      case Step::send_ready:
        TP_TRY(send_frame(FrameType::ready, {}));
        step_ = Step::recv_ready;
        break;
      case Step::recv_ready:
        TP_TRY(recv_frame(FrameType::ready));
        parts_.link = std::make_unique<PeerLink>(
            std::move(queues_), std::move(socket_),
            PeerName{peer_text(), theirs_.host + " pid " + std::to_string(theirs_.pid),
                     theirs_.rails, theirs_.ends().regular},
            PeerMemory{parts_.remote_memory, parts_.remote_rkeys},
            core_->devices->count(identity()), recoverable() ? core_->attendant.get() : nullptr);
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

Status Connection::send_hello() { return send_frame(FrameType::hello, encode_hello(mine_)); }

Status Connection::recv_hello() {
  TP_TRY(recv_frame(FrameType::hello));
  std::string why;
  if (!decode_hello(body_, theirs_, why)) return refuse(Status::remote, why);
  if (role_ == Role::acceptor) TP_TRY(choose_device());
  TP_TRY(check_rails());
  decide_mode();
  return Status::ok;
}

Status Connection::choose_device() {
  DeviceAddresses theirs;
  for (const HelloRail& rail :
       std::span(theirs_.rails).first(static_cast<std::size_t>(theirs_.ends().regular)))
    if (rail.roce) theirs.push_back(rail.gid);
  const int device = device_for(*core_->devices, device_, theirs);
  if (device == device_) return Status::ok;
  auto rails = choose_rails(*core_->devices, device);
  if (!rails) return refuse(rails.status(), "a port has no address" + remedy(rails.status()));
  use(device, std::move(rails).take());
  return Status::ok;
}

void Connection::decide_mode() {
  const Decision d = decide(end_.record, theirs_.placement, {Pattern::bulk, false});
  const bool sender = role_ == Role::connector;
  // Data of this connection flow one way only.
  // An end whose process has no CUDA driver (kCanStage) has no GPU memory to plan for.
  if (end_.record.can(kCanStage)) parts_.plan = sender ? d.send.source : d.recv.landing;
  parts_.peer_stages =
      !sender && theirs_.placement.can(kCanStage) && d.recv.source.direct_max != kAnySize;
  // Without GPUs nothing was decided.
  put_name(path_.path, "HOST");
  if (end_.record.gpu == kNoIndex && theirs_.placement.gpu == kNoIndex) return;
  const Direction& way = sender ? d.send : d.recv;
  put_name(path_.path, name_of(way.mode));
  std::string why =
      std::string(code_of(way.source.reason)) + " " + std::string(code_of(way.landing.reason));
  if (way.need != Reason::none)
    why += ", " + std::string(name_of(way.next)) + " lacks " + std::string(code_of(way.need));
  put_name(path_.reason, why);
  core_->decisions.tell(theirs_.host + "/" + std::to_string(theirs_.pid), d, end_.record,
                        theirs_.placement, end_.names, {theirs_.host, theirs_.gpu, theirs_.device});
}

void DecisionLog::tell(const std::string& peer, const Decision& decision,
                       const PlacementRecord& local, const PlacementRecord& remote,
                       const EndNames& here, const EndNames& there) {
  const std::string line = summary(decision, local, remote, here, there);
  {
    std::lock_guard hold(mutex_);
    if (!told_.insert(peer + " " + line).second) return;
  }
  TP_INFO(net, "%s", line.c_str());
  if (decision.send.wish_conflict)
    TP_WARN(
        "%s and %s ask for different modes (TWINPATH_MODE, TWINPATH_PEER_MODE); the lesser holds",
        here.host.c_str(), there.host.c_str());
}

// The peer reads it, too, and its user may not see our log.
std::string Connection::remedy(Status s) const {
  const std::string where = " on " + mine_.host;
  return s == Status::no_memory
             ? where +
                   ": raise the limit of locked memory there (ulimit -l) or of memory (ulimit -v)"
             : where + "; its log names the device and the reason";
}

namespace {
// Behind the ring a word that the sender writes from, on adapters that take nothing inline: which
// those in reserve may be.
std::size_t ring_bytes(CtsLayout layout, std::uint32_t inline_bytes, std::size_t standby) {
  const bool word = inline_bytes < sizeof(std::uint32_t) || standby > 0;
  return layout.ring_bytes() + (word ? sizeof(std::uint64_t) : 0);
}
}  // namespace

Status Connection::make_queues() {
  if (queues_ == nullptr) TP_TRY(create_queues());
  TP_TRY(moved(queues_->init(unreached_)));
  return register_own_memory();
}

// What moving queue pairs to another state came to.
Status Connection::moved(Status s) {
  if (s == Status::ok) unreached_.clear();
  return s == Status::ok || s == Status::again ? s : refuse(s, unreached_);
}

Status Connection::create_queues() {
  const bool sender = role_ == Role::connector;
  const int count = queues_for(mine_.qps_per_connection, theirs_.qps_per_connection,
                               mine_.ends().regular, theirs_.ends().regular);
  const Hello& receiver = sender ? theirs_ : mine_;
  if (sender) parts_.split_above = split_above(core_->devices->config(), mine_.rails.front().roce);
  parts_.layout = CtsLayout(receiver.ends().regular);
  auto queues = QueueSet::make(
      core_->hub, core_->devices, rails_, paths(count),
      queue_settings(sender, core_->devices->config(), core_->settings,
                     sender ? parts_.plan.direct_max != kAnySize : parts_.peer_stages,
                     parts_.split_above != SIZE_MAX));
  if (!queues)
    return refuse(queues.status(),
                  "the connection's queues cannot be made" + remedy(queues.status()));
  queues_ = std::move(queues).take();
  return Status::ok;
}

Status Connection::register_own_memory() {
  const bool sender = role_ == Role::connector;
  const std::uint32_t inline_bytes = queues_->least_inline();
  const auto standby = static_cast<std::size_t>(mine_.standby);
  auto ring =
      RegisteredBuffer::make(core_->devices->verbs(), rails_,
                             sender ? ring_bytes(parts_.layout, inline_bytes, standby) : kBoxBytes,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, standby);
  if (!ring)
    return refuse(ring.status(),
                  "the connection's memory cannot be registered" + remedy(ring.status()));
  parts_.ring = std::move(ring).take();
  if (sender || parts_.layout.wire_bytes(1) <= inline_bytes) return Status::ok;
  auto shadow = RegisteredBuffer::make(core_->devices->verbs(), rails_, parts_.layout.ring_bytes(),
                                       IBV_ACCESS_LOCAL_WRITE, standby);
  if (!shadow)
    return refuse(shadow.status(),
                  "the connection's memory cannot be registered" + remedy(shadow.status()));
  parts_.shadow = std::move(shadow).take();
  return Status::ok;
}

bool Connection::both_can_recover() const {
  return (mine_.capabilities & theirs_.capabilities & kCanRecover) != 0;
}

// With one path there is nothing to go to.
bool Connection::recoverable() const {
  return both_can_recover() && std::max(mine_.rails.size(), theirs_.rails.size()) > 1;
}

QueuePaths Connection::paths(int queues) const {
  EndRails mine = mine_.ends(), theirs = theirs_.ends();
  if (!both_can_recover()) mine.standby = theirs.standby = 0;
  return choose_paths(queues, mine, theirs, [this](int local, int remote) {
    const HelloRail& a = mine_.rails[static_cast<std::size_t>(local)];
    const HelloRail& b = theirs_.rails[static_cast<std::size_t>(remote)];
    // Two hosts with one address: see check_rails().
    return a.roce == b.roce && (mine_.host == theirs_.host ||
                                std::memcmp(a.gid.raw, b.gid.raw, sizeof a.gid.raw) != 0 ||
                                a.gid.global.interface_id == 0);
  });
}

Status Connection::send_queues() {
  Queues q;
  q.queues = queues_->addresses();
  q.extras = role_ == Role::connector ? offer_extras(*queues_)
                                      : agreed_extras(*queues_, their_queues_.extras);
  q.address = parts_.ring->address();
  for (std::size_t i = 0; i < rails_.size(); ++i)
    q.rkeys.push_back(parts_.ring->rkey(static_cast<int>(i)));
  return send_frame(FrameType::queues, encode_queues(q));
}

Status Connection::recv_queues() {
  TP_TRY(recv_frame(FrameType::queues));
  std::string why;
  if (!decode_queues(body_, their_queues_, why)) return refuse(Status::remote, why);
  if (const std::size_t made = queues_->addresses().size(); their_queues_.queues.size() != made)
    return refuse(Status::remote, "one side made " + std::to_string(made) + " queues, the other " +
                                      std::to_string(their_queues_.queues.size()));
  if (their_queues_.rkeys.size() != theirs_.rails.size())
    return refuse(Status::remote, "the peer gave no keys to its ring");
  parts_.remote_memory = their_queues_.address;
  std::copy(their_queues_.rkeys.begin(), their_queues_.rkeys.end(), parts_.remote_rkeys.begin());
  // Once only: raising the queues may take several calls, and the adapter forgets with the first.
  if (role_ == Role::acceptor) {
    take_extras(*queues_, their_queues_.extras);
  } else if (const Status s = use_extras(*queues_, their_queues_.extras, why); s != Status::ok) {
    return refuse(s, why);
  }
  return Status::ok;
}

Status Connection::raise_queues() {
  TP_TRY(moved(queues_->raise(theirs_.rails, their_queues_.queues, unreached_)));
  if (role_ == Role::acceptor) {
    if (!prepost_receives(*queues_))
      return refuse(Status::system, "the receive queues cannot be filled");
  }
  return Status::ok;
}

}  // namespace twinpath
