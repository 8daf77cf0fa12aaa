#include "proxy/send/send_comm.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "plugin/base/clock.h"

namespace twinpath {
namespace {

std::size_t most_bytes_of(const Devices& devices, int device) {
  auto props = devices.properties(device);
  return props ? props->max_message_bytes : 0;
}

LaneRules rules_of(const Config& config, const ConnectionParts& parts) {
  return {parts.near_rails, config.stripe_min.n, config.ib_split_data_on_qps, config.measure_rails,
          std::popcount(parts.link->set().regular_rails()) == 1};
}

std::span<counters::Rail> rails_of(const PeerLink& link) {
  return {link.counts()->rails.data(), link.set().rails().size()};
}

std::uint64_t wr_base_of(const CompletionHub::CommId& id) {
  return encode(WrId{id.index, id.epoch, WrKind::send_data, 0, 0});
}

// The queues of a set that are in use.
std::vector<Lane> lanes_of(const PeerLink& link) {
  std::vector<Lane> lanes;
  const bool reserve = link.set().reserve_rail() >= 0;
  for (const Queue& queue : link.set().queues()) {
    if (queue.qp == nullptr) continue;
    lanes.push_back(
        {queue.qp.get(), static_cast<std::uint8_t>(queue.rail),
         static_cast<std::uint8_t>(queue.remote_rail),
         // A queue in reserve is alone, and then all keys of a cell are for its rail.
         static_cast<std::uint8_t>(reserve ? 0 : queue.remote_rail),
         static_cast<std::uint16_t>(std::min<std::uint32_t>(queue.inline_bytes, kInlineData)),
         queue.speed_mbps, &link.counts()->rails[static_cast<std::size_t>(queue.rail)],
         queue.shared != nullptr});
  }
  return lanes;
}

// How many rails these lead over, at the end that has more.
int rails_of(const std::vector<Lane>& lanes) {
  std::uint32_t local = 0, remote = 0;
  for (const Lane& lane : lanes) {
    local |= 1u << lane.rail;
    remote |= 1u << lane.remote_rail;
  }
  return std::max(std::popcount(local), std::popcount(remote));
}

}  // namespace

ProxySendComm::ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : hub_(&parts.link->hub()),
      ring_(parts.ring->data(), parts.layout),
      rules_{device, most_bytes_of(*core->devices, device), parts.plan},
      requests_(this, wr_base_of(parts.link->comm_id())),
      queues_(Lanes(rules_of(core->devices->config(), parts), rails_of(*parts.link)),
              WriteMaker(parts.remote_memory, parts.remote_rkeys, parts.split_above),
              wr_base_of(parts.link->comm_id()), rules_.most_bytes),
      trace_(rails_of(*parts.link)),
      blocks_(parts.link->set().rails().size()),
      core_(std::move(core)),
      ring_memory_(std::move(parts.ring)),
      link_(std::move(parts.link)),
      kept_(ring_memory_->data(), ring_.layout()) {
  choose_queues();
  hub_->attach(link_->comm_id(), this);
  link_->serve(this);
  core_->devices->attach(device, *this);
}

void ProxySendComm::choose_queues() {
  std::vector<Lane> lanes = lanes_of(*link_);
  for (const Lane& lane : lanes)
    if (!blocks_.known(lane.rail))
      blocks_.serve(lane.rail, hub_->parcel_pool(*link_->set().rails()[lane.rail].port.adapter));
  const int rails = rails_of(lanes);
  queues_.use(std::move(lanes), rails);
}

ProxySendComm::~ProxySendComm() {
  link_->drain([this] {
    (void)post_held(true);
    return at_risk().any;
  });
  link_->serve(nullptr);
  // From here on completions find nobody; then the queues go, then what they wrote to.
  hub_->attach(link_->comm_id(), nullptr);
  {
    std::lock_guard hold(hub_->lock);
    hub_->drop_held(*this);
  }
  core_->devices->detach(*this);
  const bool shared = link_->set().shares();
  link_.reset();
  if (shared) core_->shared.keep(std::move(ring_memory_));
  // Blocks of parcels that were under way, or not complete: nobody reads them any more.
  std::lock_guard hold(hub_->lock);
  // Its members' registrations may be gone already, as those of other messages that never left.
  if (coalescer_.group_open()) blocks_.pool(queues_.first().rail)->give(coalescer_.group().block());
  requests_.for_all([this](SendRequest& r) { blocks_.give_back(r); });
}

// What the peer has offered, what was answered, and what is under way.
std::uint64_t ProxySendComm::progress() {
  Waiting w;
  w.add(ring_.seen());
  w.add(ring_.head());
  w.add(static_cast<std::uint64_t>(ring_.used_ahead()));
  requests_.for_all([&w](const SendRequest& r) { w.add(r.pending()); });
  return w.progress;
}

void ProxySendComm::in_vain(int more) {
  if (link_->broken()) return;
  // Since the caller's last call in vain: whether anything was accepted or finished.
  const std::uint64_t moved = ring_.head() << 16 ^ requests_.next();
  // While something is on its way, that comes first: the peer may offer nothing because its own
  // receives wait for just this.
  const auto cause = [this] {
    if (requests_.full()) return counters::Wait::slots;
    if (requests_.used() == 0) return counters::Wait::peer_cts;
    return staged_ != nullptr && staged_->busy() && staged_->writes() == 0
               ? counters::Wait::gpu_copy
               : counters::Wait::network;
  };
  link_->waited(moved, cause, [this, more] {
    return Waiting{requests_.used() + more, progress()};
  });
}

bool ProxySendComm::post_held(bool overdue) {
  if (link_->halted()) return false;
  if (staged_ != nullptr && staged_->busy()) post_staged();
  if (!coalescer_.empty() && coalescer_.due(hub_->polls(), overdue) && queues_.room()) {
    if (coalescer_.group_open()) end_group();
    if (!coalescer_.batch().empty()) (void)post_batch();
  }
  return !link_->halted() && (!coalescer_.empty() || (staged_ != nullptr && staged_->busy()));
}

Status ProxySendComm::tell_used() {
  ring_.report().told(ring_.head());
  set_slow_from();
  return queues_.tell_used(ring_.head(), *ring_memory_, ring_.layout().ring_bytes())
             ? Status::ok
             : post_failed();
}

Status ProxySendComm::post_failed() {
  const SendQueues::Failed& failed = queues_.failed();
  link_->fail("cannot post a write of %zu bytes on QP %u: %s (errno %d)", failed.bytes,
              failed.queue, std::strerror(failed.error), failed.error);
  return Status::system;
}

// Failures, and what is no message's.
void ProxySendComm::on_other(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS)
    link_->fail_completion(decode_wr_id(wc.wr_id), wc);
  else if (kind_of(wc.wr_id) == WrKind::probe)
    link_->answered(wc);
}

void ProxySendComm::on_completion(const ibv_wc& wc) {
  SendRequest* const found = requests_.find(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS || found == nullptr) [[unlikely]] {
    on_other(wc);
    return;
  }
  SendRequest& last = *found;
  const int pending = last.pending();
  if (pending == 0) [[unlikely]]
    return;
  last.set_pending(pending - 1);
  if (last.small_) {
    last.small_ = false;
    coalescer_.small_arrived();
  }
  if (last.block_ != kNoBlock || last.before_ != SendRequest::kNone || last.marked()) [[unlikely]]
    special_arrived(last, wc);
}

void ProxySendComm::special_arrived(SendRequest& last, const ibv_wc& wc) {
  if (last.marked()) {
    if (last.is(SendRequest::kChunked)) staged_->write_arrived();
    Lanes& lanes = queues_.lanes();
    // While queues are replaced lanes still name those that are gone, and completions of these
    // come.
    const int lane = link_->halted() ? -1 : lanes.find(wc.qp_num, hub_->polled()->cq());
    const auto at = static_cast<std::size_t>(lane);
    trace_.arrived(last, lane < 0 ? -1 : lanes[at].rail);
    if (last.is(SendRequest::kPaced) && lane >= 0)
      lanes.arrived(at, now_ns(), [this](const Lane& of, bool slow, std::uint32_t permille) {
        tell_pace(*link_, of.rail, of.remote_rail, slow, permille);
      });
  }
  blocks_.give_back(last);
  requests_.end_batch(last);
}

inline Status SendRequest::finish(int& done, int* sizes) {
  if (!active_) [[unlikely]]
    return Status::bad_argument;
  active_ = false;
  done = 1;
  if (sizes != nullptr) *sizes = told_size(bytes_);
  comm_->requests_.give(*this);
  return Status::ok;
}

Status SendRequest::test(int& done, int* sizes) {
  // Pairs with set_pending() of whoever took the last completion, perhaps another thread.
  if (pending_.load(std::memory_order_acquire) != 0) [[unlikely]]
    return comm_->test_pending(*this, done, sizes);
  return finish(done, sizes);
}

// How it goes is kept with the flights of its comm.
std::size_t SendRequest::parts(std::span<Part, kMaxParts> out) const {
  std::lock_guard hold(comm_->hub_->lock);
  const Flight* const flight = comm_->trace_.flight(slot());
  if (flight == nullptr) return 0;
  const std::vector<Rail>& rails = comm_->link_->set().rails();
  for (std::size_t i = 0; i < flight->count; ++i) {
    const Flight::Leg& leg = flight->legs[i];
    out[i] = {comm_->core_->devices->index_of(rails[leg.rail].port), leg.queue, wr_id_, leg.bytes,
              0};
  }
  return flight->count;
}

std::uint32_t SendRequest::parts_left() const {
  std::lock_guard hold(comm_->hub_->lock);
  const Flight* const flight = comm_->trace_.flight(slot());
  return flight == nullptr ? ~0u : flight->left();
}

Status ProxySendComm::test_pending(SendRequest& request, int& done, int* sizes) {
  done = 0;
  {
    std::lock_guard hold(hub_->lock);
    if (request.pending() != 0) (void)link_->poll();
    if (request.pending() != 0) {
      in_vain(0);
      return link_->broken() ? Status::remote : Status::ok;
    }
  }
  return request.finish(done, sizes);
}

Result<Memory*> ProxySendComm::register_memory(void* data, std::size_t bytes, MemoryType type,
                                               std::uint64_t dmabuf_offset, int dmabuf_fd) {
  const Staging staging = staging_of(rules_.plan);
  auto made =
      if_reached(*link_, core_->devices->register_memory(rules_.device, data, bytes, type,
                                                         dmabuf_offset, dmabuf_fd, staging));
  if (made && type == MemoryType::cuda && staging != Staging::never) {
    auto staged = std::make_unique<StagedSends>();
    std::lock_guard hold(hub_->lock);
    if (staged_ == nullptr) staged_ = std::move(staged);
  }
  return made;
}

Status ProxySendComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

// Whoever aborts takes away memory of messages that were accepted just now: what is held leaves
// while its registration is there to be read.
void ProxySendComm::give_up(const ProxyMemory& memory) {
  std::lock_guard hold(hub_->lock);
  for (std::uint16_t slot = coalescer_.last(); slot != SendRequest::kNone;
       slot = requests_.at(slot).before()) {
    if (requests_.at(slot).memory() != &memory) continue;
    while (!queues_.room() && link_->poll() > 0) {
    }
    (void)post_held(true);
    break;
  }
  // Between that and closing queues may be replaced.  What is held, too, is read only when they
  // are new.
  if (link_->can_fail_over() && requests_.forget(memory) && link_->halted())
    link_->fail("%s", kSentMemoryGone);
}

}  // namespace twinpath
