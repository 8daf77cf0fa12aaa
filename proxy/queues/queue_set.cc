#include "proxy/queues/queue_set.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/base/random.h"
#include "plugin/base/reason_text.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/refusal.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/flow_label.h"
#include "plugin/rdma/queue_pair.h"
#include "proxy/queues/shared_pairs.h"

namespace twinpath {
namespace {

const char* raise_remedy(int error, bool roce, bool soft) {
  if (is_refusal(error)) return kProfileRefuses;
  switch (error) {
    case ETIMEDOUT:
      return roce ? "the peer's GID does not resolve: check routes and VLANs between the two "
                    "interfaces, or choose another NCCL_IB_GID_INDEX"
                  : "no path to the peer: check the subnet manager and that both ports are ACTIVE";
    case EINVAL:
      return "the GID index, MTU or address is not valid here: check NCCL_IB_GID_INDEX, "
             "NCCL_IB_ROCE_VERSION_NUM and that both GIDs are of one family";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return soft
                 ? "the soft HCA reaches no process on another host, of another user or in another "
                   "job (TWINPATH_SOFT_JOB)"
                 : "no route from this GID to the peer's: check NCCL_IB_GID_INDEX";
    default:
      return "see the kernel log (dmesg) of this host";
  }
}

}  // namespace

Result<std::unique_ptr<QueueSet>> QueueSet::make(std::shared_ptr<CompletionHub> hub,
                                                 std::shared_ptr<Devices> devices,
                                                 std::vector<Rail> rails, const QueuePaths& paths,
                                                 const QueueSettings& settings, Engines engines,
                                                 const std::vector<QueueShare>& shares) {
  std::unique_ptr<QueueSet> set(
      new QueueSet(std::move(hub), std::move(devices), std::move(rails), settings));
  set->queues_.resize(paths.queues.size());
  for (std::size_t i = 0; i < paths.queues.size(); ++i) {
    Queue& q = set->queues_[i];
    q.rail = paths.queues[i].local;
    q.remote_rail = paths.queues[i].remote;
    if (static_cast<int>(i) >= paths.regular) continue;
    set->regular_ |= queue_bit(static_cast<int>(i));
    if (!shares.empty()) {
      set->join(q, shares[i]);
      continue;
    }
    q.psn = random_24_bits();
    if (engines == Engines::any)
      TP_TRY(set->reserve(q, false, set->share()));
    else if (i == 0)
      TP_TRY(set->reserve(q, false, set->share() * paths.regular));
    else
      q.engine = set->queues_[0].engine;
    TP_TRY(set->make_pair(q));
  }
  return set;
}

void QueueSet::join(Queue& q, const QueueShare& share) {
  const Queue& first = share.pairs->first();
  q.shared = share.pairs;
  q.qp = share.pairs->attach(share.member, share.comm);
  q.engine = first.engine;
  q.psn = first.psn;
  q.inline_bytes = share.pairs->inline_bytes();
  if (std::find(engines_.begin(), engines_.end(), q.engine) == engines_.end())
    engines_.push_back(q.engine);
}

bool Queue::has(std::uint32_t qpn) const {
  return qp != nullptr && (qp->qp_num == qpn || (shared != nullptr && shared->has(qpn)));
}

Status QueueSet::reserve(Queue& q, bool locked, int entries) {
  Adapter& adapter = *rail_of(q).port.adapter;
  auto engine = locked ? hub_->reserve_locked(adapter, entries) : hub_->reserve(adapter, entries);
  if (!engine) return engine.status();
  q.engine = *engine;
  if (std::find(engines_.begin(), engines_.end(), *engine) == engines_.end())
    engines_.push_back(*engine);
  return Status::ok;
}

Status QueueSet::make_pair(Queue& q) {
  const RailPort& port = rails_[static_cast<std::size_t>(q.rail)].port;
  auto qp = make_queue_pair(devices_->verbs(), port, q.engine->cq(), settings_, q.inline_bytes);
  if (!qp) return qp.status();
  q.qp = std::move(qp).take();
  q.halted = false;
  port.adapter->events.forget_queue(q.qp->qp_num);
  return Status::ok;
}

// `what` was tried; the errno value's text and the remedy come behind it.
Status QueueSet::refused(int error, const std::string& what, const std::string& remedy,
                         std::string& why) {
  why = what + " gives " + reason_text(error);
  const bool again = retry_.failed(error, now_ns());
  if (again && retry_.failures() == 1)
    TP_INFO(net, "%s; trying again, %d times at most", why.c_str(), settings_.retry.count);
  if (retry_.failures() > 1) why += ", " + std::to_string(retry_.failures()) + " times";
  why += "; " + remedy;
  return again ? Status::again : Status::system;
}

QueueSet::~QueueSet() {
  for (Queue& q : queues_) {
    const bool own = q.shared == nullptr;
    drop_pair(q);
    if (own && q.engine != nullptr) hub_->release(q.engine, share());
  }
}

void QueueSet::drop_pair(Queue& q) {
  if (q.qp == nullptr) return;
  const std::uint32_t qpn = q.qp->qp_num;
  q.qp.reset();
  if (q.shared != nullptr) {
    q.shared = nullptr;
    q.engine = nullptr;
    return;
  }
  rails_[static_cast<std::size_t>(q.rail)].port.adapter->events.forget_queue(qpn);
}

// Out of use, with its share of the CQ.  What is not known to have halted might receive.
void QueueSet::lay_aside(Queue& q) {
  if (q.qp == nullptr) return;
  if (!q.halted || q.shared != nullptr) return drop_pair(q);
  rail_of(q).port.adapter->events.forget_queue(q.qp->qp_num);
  hub_->bury(std::move(q.qp), std::exchange(q.engine, nullptr), share());
}

void QueueSet::halt() {
  for (Queue& q : queues_) {
    if (q.qp == nullptr) continue;
    // One whose adapter has gone says so: it is halted, too, if nobody knows.
    q.halted =
        q.shared != nullptr ? q.shared->halt() : move_to_error(devices_->verbs(), q.qp.get()) == 0;
  }
}

void QueueSet::leave_engine(Queue& q) {
  if (q.shared != nullptr) return q.shared->leave_engines();
  CompletionEngine* const engine = std::exchange(q.engine, nullptr);
  const auto take_all = [&] {
    while (hub_->take(*engine) > 0) {
    }
  };
  take_all();  // some providers drop what a destroyed pair has left there, and others do not
  drop_pair(q);
  take_all();
  hub_->release(engine, share());
  if (std::none_of(queues_.begin(), queues_.end(),
                   [&](const Queue& other) { return other.engine == engine; }))
    std::erase(engines_, engine);
}

Status QueueSet::remake(QueueMask wanted, QueueMask& failed, std::string& why) {
  failed = 0;
  next_ = 0;
  receives_ = false;
  retry_.succeeded();
  for (Queue& q : queues_) lay_aside(q);
  std::vector<bool> asked(rails_.size());
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& q = queues_[i];
    if ((wanted & queue_bit(static_cast<int>(i))) == 0) continue;
    const auto rail = static_cast<std::size_t>(q.rail);
    if (!asked[rail]) {
      auto now = devices_->live(rails_[rail].port, why);
      if (!now) {
        failed |= queue_bit(static_cast<int>(i));
        return now.status();
      }
      rails_[rail] = Rail::of(rails_[rail].port, *now);
      asked[rail] = true;
    }
    q.psn = random_24_bits();
    if ((q.engine != nullptr || reserve(q, true, share()) == Status::ok) &&
        make_pair(q) == Status::ok &&
        move_to_init(devices_->verbs(), q.qp.get(), rails_[rail], settings_) == 0)
      continue;
    drop_pair(q);
    failed |= queue_bit(static_cast<int>(i));
    why = rails_[rail].port.port->name + " makes no queue pair";
    return Status::system;
  }
  return Status::ok;
}

QueueMask QueueSet::in_use() const {
  QueueMask mask = 0;
  for (std::size_t i = 0; i < queues_.size(); ++i)
    if (queues_[i].qp != nullptr) mask |= queue_bit(static_cast<int>(i));
  return mask;
}

QueueMask QueueSet::choose(QueueMask usable) const {
  if (const QueueMask regular = usable & regular_; regular != 0) return regular;
  return usable & (~usable + 1);
}

int QueueSet::reserve_rail() const {
  const QueueMask mask = in_use();
  return mask == 0 || (mask & regular_) != 0 ? -1 : queues_[static_cast<std::size_t>(first())].rail;
}

bool QueueSet::request_refused(const Queue& queue) const {
  if (queue.qp == nullptr) return false;
  const RailPort& port = rail_of(queue).port;
  port.adapter->events.poll();
  // One that is being unplugged has no memory any more.
  return (queue.shared != nullptr ? queue.shared->any_request_refused()
                                  : port.adapter->events.request_refused(queue.qp->qp_num)) &&
         devices_->absence_text(port).empty();
}

bool QueueSet::event_failed(const Queue& queue) const {
  if (queue.qp == nullptr) return false;
  return queue.shared != nullptr
             ? queue.shared->any_event_failed()
             : rail_of(queue).port.adapter->events.queue_failed(queue.qp->qp_num);
}

bool QueueSet::given_up(const Queue& queue) {
  return queue.shared != nullptr && queue.shared->given_up();
}

bool QueueSet::shares() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const Queue& q) { return q.shared != nullptr; });
}

bool QueueSet::any_request_refused() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [&](const Queue& q) { return request_refused(q); });
}

bool QueueSet::uses(const CompletionEngine& engine) const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [&](const Queue& q) { return q.qp != nullptr && q.engine == &engine; });
}

std::uint32_t QueueSet::rails_of(QueueMask mask) const {
  std::uint32_t rails = 0;
  for (std::size_t i = 0; i < queues_.size(); ++i)
    if ((mask & queue_bit(static_cast<int>(i))) != 0) rails |= 1u << queues_[i].rail;
  return rails;
}

std::uint32_t QueueSet::least_inline() const {
  std::uint32_t least = UINT32_MAX;
  for (const Queue& q : queues_)
    if (q.qp != nullptr) least = std::min(least, q.inline_bytes);
  return least;
}

int QueueSet::first() const {
  for (std::size_t i = 0; i < queues_.size(); ++i)
    if (queues_[i].qp != nullptr) return static_cast<int>(i);
  return 0;
}

Status QueueSet::init(std::string& why) {
  for (; next_ < queues_.size(); ++next_) {
    if (!retry_.due(now_ns())) return Status::again;
    Queue& q = queues_[next_];
    if (q.qp == nullptr) continue;
    const Rail& local = rail_of(q);
    if (q.shared != nullptr) {
      TP_TRY(q.shared->init(why));
      continue;
    }
    const int error = move_to_init(devices_->verbs(), q.qp.get(), local, settings_);
    if (error != 0)
      return refused(error, local.port.port->name + ": queue pair to INIT",
                     std::string(is_refusal(error) ? kProfileRefuses
                                                   : "see the kernel log (dmesg) of this host") +
                         "; the partition is index " + std::to_string(local.pkey_index) +
                         " (NCCL_IB_PKEY, NCCL_IB_PKEY_VALUE)",
                     why);
    retry_.succeeded();
  }
  next_ = 0;
  return Status::ok;
}

Status QueueSet::raise(const std::vector<HelloRail>& remote, const std::vector<QueueAddress>& to,
                       std::string& why) {
  const auto base = static_cast<std::size_t>(first());
  while (next_ < queues_.size()) {
    if (!retry_.due(now_ns())) return Status::again;
    Queue& q = queues_[next_];
    if (q.qp == nullptr) {
      ++next_;
      continue;
    }
    const Rail& local = rail_of(q);
    const HelloRail& peer = remote[static_cast<std::size_t>(q.remote_rail)];
    q.speed_mbps = std::min(static_cast<std::uint32_t>(std::max(local.port.port->speed_mbps, 0)),
                            peer.speed_mbps);
    if (q.shared != nullptr) {
      TP_TRY(q.shared->raise(peer, why));
      ++next_;
      continue;
    }
    const std::uint32_t label =
        settings_.flow_labels
            ? flow_label(queues_[base].qp->qp_num, to[base].qpn, static_cast<std::uint32_t>(next_))
            : 0;
    const Verbs& verbs = devices_->verbs();
    const int error = receives_
                          ? move_to_rts(verbs, q.qp.get(), settings_, q.psn, 1)
                          : move_to_rtr(verbs, q.qp.get(),
                                        path_attributes(local, peer, to[next_], settings_, label));
    if (error != 0)
      return refused(error,
                     local.port.port->name + " (GID index " + std::to_string(local.gid.index) +
                         ", " + gid_text(local.gid.gid) + ") cannot reach " + peer.port +
                         " (GID index " + std::to_string(peer.gid_index) + ", " +
                         gid_text(peer.gid) + ", LID " + std::to_string(peer.lid) +
                         "): queue pair to " + (receives_ ? "RTS" : "RTR"),
                     raise_remedy(error, local.port.port->roce,
                                  devices_->config().fabric == FabricChoice::soft),
                     why);
    retry_.succeeded();
    if (receives_) ++next_;
    receives_ = !receives_;
  }
  return Status::ok;
}

std::vector<QueueAddress> QueueSet::addresses() const {
  std::vector<QueueAddress> out;
  for (const Queue& q : queues_)
    if (q.qp != nullptr) out.push_back({q.qp->qp_num, q.psn});
  return out;
}

const Queue* QueueSet::find(std::uint32_t qpn) const {
  for (const Queue& q : queues_)
    if (q.has(qpn)) return &q;
  return nullptr;
}

}  // namespace twinpath
