// Queues and memory of a connection in the making.
#include <algorithm>
#include <mutex>

#include "proxy/connect/connection.h"
#include "proxy/queues/depths.h"
#include "proxy/queues/ece.h"
#include "proxy/queues/receive_queue.h"
#include "proxy/wire/parcel.h"

namespace twinpath {
namespace {

// Depths of the queues of each role; the reasons stand at the definitions.
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

// From which size on a sender splits data and immediate (ConnectionParts::split_above), as NCCL's
// own transport does: where switches may route adaptively, which without the user's word is on
// InfiniBand.
std::size_t split_above(const Config& config, bool roce) {
  const bool adaptive = config.ib_adaptive_routing < 0 ? !roce : config.ib_adaptive_routing != 0;
  return adaptive ? static_cast<std::size_t>(config.ib_ar_threshold) : SIZE_MAX;
}

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
  const Hello& receiver = sender ? hellos_.theirs : hellos_.mine;
  if (sender)
    parts_.split_above = split_above(core_->devices->config(), hellos_.mine.rails.front().roce);
  parts_.layout = CtsLayout(receiver.ends().regular);
  auto place = CommPlace::take(core_->hub);
  if (!place) return refuse(place.status(), "the session has no room for another connection");
  place_ = std::move(place).take();
  const QueuePaths paths = hellos_.paths();
  const QueueSettings settings =
      queue_settings(sender, core_->devices->config(), core_->settings,
                     sender ? parts_.plan.direct_max != kAnySize : parts_.peer_stages,
                     parts_.split_above != SIZE_MAX);
  if (hellos_.shared_pairs() > 0) TP_TRY(join_shared(paths, settings));
  std::vector<QueueShare> shares;
  for (const SharedSets::Place& at : said_.shared)
    shares.push_back({at.pairs, at.member, place_.id()});
  auto queues = QueueSet::make(core_->hub, core_->devices, rails_, paths, settings,
                               QueueSet::Engines::any, shares);
  if (!queues)
    return refuse(queues.status(),
                  "the connection's queues cannot be made" + remedy(queues.status()));
  queues_ = std::move(queues).take();
  return Status::ok;
}

// A set on each regular queue's way.
Status Connection::join_shared(const QueuePaths& paths, const QueueSettings& settings) {
  const bool sender = role_ == Role::connector;
  const auto regular = static_cast<std::size_t>(paths.regular);
  if (!sender && said_.theirs.shares.size() != regular)
    return refuse(Status::remote, "it agreed to share queue pairs, but names none");
  for (std::size_t i = 0; i < regular; ++i) {
    const Rail& rail = rails_[static_cast<std::size_t>(paths.queues[i].local)];
    const HelloRail& remote =
        hellos_.theirs.rails[static_cast<std::size_t>(paths.queues[i].remote)];
    const auto make = [&] {
      return SharedPairs::make(core_->hub, core_->devices, rail, settings, hellos_.shared_pairs());
    };
    const std::uint64_t peer = hellos_.theirs.session;
    const auto named = [&] { return said_.theirs.shares[i]; };
    Writer ways;
    encode_rail(ways, rail.hello());
    encode_rail(ways, remote);
    auto at = sender ? core_->shared.join({peer, ways.take(), i}, make)
                     : core_->shared.join(peer, named().set, named().member, make);
    if (!at)
      return refuse(at.status(),
                    at.status() == Status::bad_argument
                        ? "the queue pairs that it would share have failed"
                        : "the shared queue pairs cannot be made" + remedy(at.status()));
    said_.shared.push_back(*at);
  }
  return Status::ok;
}

Status Connection::register_own_memory() {
  const bool sender = role_ == Role::connector;
  const std::uint32_t inline_bytes = queues_->least_inline();
  const auto standby = static_cast<std::size_t>(hellos_.mine.standby);
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

Status Connection::send_queues() {
  Queues q;
  q.queues = queues_->addresses();
  q.extras = role_ == Role::connector ? offer_extras(*queues_)
                                      : agreed_extras(*queues_, said_.theirs.extras);
  q.address = parts_.ring->address();
  for (std::size_t i = 0; i < rails_.size(); ++i)
    q.rkeys.push_back(parts_.ring->rkey(static_cast<int>(i)));
  for (const SharedSets::Place& at : said_.shared)
    q.shares.push_back({at.set, static_cast<std::uint8_t>(at.member), at.pairs->addresses()});
  return send_frame(FrameType::queues, encode_queues(q));
}

Status Connection::recv_queues() {
  const bool sender = role_ == Role::connector;
  TP_TRY(recv_frame(FrameType::queues, sender ? FrameType::other_sets : FrameType::queues));
  if (frames_.header().type == FrameType::other_sets) return choose_other_sets();
  std::string why;
  if (!decode_queues(frames_.body(), said_.theirs, why)) return refuse(Status::remote, why);
  return Status::ok;
}

bool Connection::names_failed_sets() const {
  return std::any_of(said_.theirs.shares.begin(), said_.theirs.shares.end(), [this](auto& share) {
    return core_->shared.failed(hellos_.theirs.session, share.set);
  });
}

Status Connection::choose_other_sets() {
  if (said_.other_sets || said_.shared.empty())
    return refuse(Status::remote, "the queue pairs that it would share have failed there");
  for (const SharedSets::Place& at : said_.shared) core_->shared.leave(at.set);
  place_ = {};
  queues_.reset();
  parts_.ring.reset();
  said_ = {};
  said_.other_sets = true;
  return Status::ok;
}

// What the peer says of its queues, once there are own ones.
Status Connection::check_queues() {
  std::string why;
  if (const std::size_t made = queues_->addresses().size(); said_.theirs.queues.size() != made)
    return refuse(Status::remote, "one side made " + std::to_string(made) + " queues, the other " +
                                      std::to_string(said_.theirs.queues.size()));
  if (said_.theirs.rkeys.size() != hellos_.theirs.rails.size())
    return refuse(Status::remote, "the peer gave no keys to its ring");
  for (std::size_t i = 0; i < said_.shared.size(); ++i)
    if (i >= said_.theirs.shares.size() ||
        !said_.shared[i].pairs->learn(said_.theirs.shares[i].pairs))
      return refuse(Status::remote, "the peer shares other queue pairs than it said before");
  parts_.remote_memory = said_.theirs.address;
  std::copy(said_.theirs.rkeys.begin(), said_.theirs.rkeys.end(), parts_.remote_rkeys.begin());
  // Once only: raising the queues may take several calls, and the adapter forgets with the first.
  if (role_ == Role::acceptor) {
    take_extras(*queues_, said_.theirs.extras);
  } else if (const Status s = use_extras(*queues_, said_.theirs.extras, why); s != Status::ok) {
    return refuse(s, why);
  }
  return Status::ok;
}

Status Connection::raise_queues() {
  TP_TRY(moved(queues_->raise(hellos_.theirs.rails, said_.theirs.queues, unreached_)));
  if (role_ == Role::acceptor) {
    // Of shared queue pairs completions may come at any time.
    const std::lock_guard hold(core_->hub->lock);
    if (!prepost_receives(*queues_, place_.id()))
      return refuse(Status::system, "the receive queues cannot be filled");
  }
  return Status::ok;
}

}  // namespace twinpath
