// Queues and memory of a connection in the making.
#include <algorithm>

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
  auto queues = QueueSet::make(
      core_->hub, core_->devices, rails_, hellos_.paths(),
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
                                      : agreed_extras(*queues_, their_queues_.extras);
  q.address = parts_.ring->address();
  for (std::size_t i = 0; i < rails_.size(); ++i)
    q.rkeys.push_back(parts_.ring->rkey(static_cast<int>(i)));
  return send_frame(FrameType::queues, encode_queues(q));
}

Status Connection::recv_queues() {
  TP_TRY(recv_frame(FrameType::queues));
  std::string why;
  if (!decode_queues(frames_.body(), their_queues_, why)) return refuse(Status::remote, why);
  if (const std::size_t made = queues_->addresses().size(); their_queues_.queues.size() != made)
    return refuse(Status::remote, "one side made " + std::to_string(made) + " queues, the other " +
                                      std::to_string(their_queues_.queues.size()));
  if (their_queues_.rkeys.size() != hellos_.theirs.rails.size())
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
  TP_TRY(moved(queues_->raise(hellos_.theirs.rails, their_queues_.queues, unreached_)));
  if (role_ == Role::acceptor) {
    if (!prepost_receives(*queues_, place_.id()))
      return refuse(Status::system, "the receive queues cannot be filled");
  }
  return Status::ok;
}

}  // namespace twinpath
