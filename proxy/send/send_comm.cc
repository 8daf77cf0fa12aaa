#include "proxy/send/send_comm.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <utility>

#include "plugin/base/log.h"

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

}  // namespace

ProxySendComm::ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : hub_(&parts.link->hub()),
      ring_(parts.ring->data(), parts.layout),
      counts_(parts.link->counts()),
      wr_base_(encode(WrId{parts.link->set().comm_id().index, parts.link->set().comm_id().epoch,
                           WrKind::send_data, 0, 0})),
      most_bytes_(most_bytes_of(*core->devices, device)),
      device_(device),
      maker_(parts.remote_memory, parts.remote_rkeys, parts.split_above),
      lanes_(rules_of(core->devices->config(), parts),
             {counts_->rails.data(), parts.link->set().rails().size()}),
      core_(std::move(core)),
      ring_memory_(std::move(parts.ring)),
      link_(std::move(parts.link)),
      plan_(parts.plan) {
  pools_.resize(link_->set().rails().size());
  choose_queues();
  wr_.sg_list = &sge_;
  wr_.num_sge = 1;
  wr_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  hub_->attach(link_->set().comm_id(), this);
  link_->serve(this);
  core_->devices->attach(device_, *this);
}

void ProxySendComm::choose_queues() {
  std::vector<Lane> lanes;
  std::uint32_t local = 0, remote = 0;
  const bool reserve = link_->set().reserve_rail() >= 0;
  for (const Queue& queue : link_->set().queues()) {
    if (queue.qp == nullptr) continue;
    const auto rail = static_cast<std::size_t>(queue.rail);
    if (pools_[rail] == nullptr)
      pools_[rail] = hub_->parcel_pool(*link_->set().rails()[rail].port.adapter);
    lanes.push_back(
        {queue.qp.get(), static_cast<std::uint8_t>(queue.rail),
         static_cast<std::uint8_t>(queue.remote_rail),
         // A queue in reserve is alone, and then all keys of a cell are for its rail.
         static_cast<std::uint8_t>(reserve ? 0 : queue.remote_rail),
         static_cast<std::uint16_t>(std::min<std::uint32_t>(queue.inline_bytes, kInlineData)),
         queue.speed_mbps, &counts_->rails[rail]});
    local |= 1u << queue.rail;
    remote |= 1u << queue.remote_rail;
  }
  lanes_.use(std::move(lanes), std::max(std::popcount(local), std::popcount(remote)));
  // On one queue there is nothing to choose.
  short_way_ = lanes_.one() ? std::min(most_bytes_, maker_.split_above()) : 0;
}

ProxySendComm::~ProxySendComm() {
  link_->drain([this] {
    (void)post_held(true);
    return writes_under_way();
  });
  link_->serve(nullptr);
  // From here on completions find nobody; then the queues go, then what they wrote to.
  hub_->attach(link_->set().comm_id(), nullptr);
  {
    std::lock_guard hold(hub_->lock);
    hub_->drop_held(*this);
  }
  core_->devices->detach(*this);
  link_.reset();
  // Blocks of parcels that were under way, or not complete: nobody reads them any more.
  std::lock_guard hold(hub_->lock);
  // Its members' registrations may be gone already, as those of other messages that never left.
  if (coalescer_.group_open()) pools_[lanes_.first().rail]->give(coalescer_.group().block());
  for (std::uint16_t i = 0; requests_.made(i); ++i)
    if (const SendRequest& r = requests_.at(i); r.block_ != kNoBlock)
      pools_[r.pool_]->give(r.block_);
}

// What the peer has offered, what was answered, and what is under way.
Waiting ProxySendComm::waiting(int more) { return {requests_.used() + more, progress()}; }

std::uint64_t ProxySendComm::progress() {
  Waiting w;
  w.add(ring_.seen());
  w.add(ring_.head());
  w.add(static_cast<std::uint64_t>(ring_.used_ahead()));
  for (std::size_t i = 0; requests_.made(i); ++i) w.add(requests_.at(i).pending());
  return w.progress;
}

bool ProxySendComm::writes_under_way() {
  for (std::size_t i = 0; requests_.made(i); ++i)
    if (requests_.at(i).pending() > 0) return true;
  return false;
}

Status ProxySendComm::check(const void* data, std::size_t bytes, const ProxyMemory* memory,
                            bool& stage) const {
  if (bytes == 0) return Status::ok;
  if (bytes > most_bytes_) {
    TP_WARN("isend of %zu bytes to %s: the device sends at most %zu in one message (maxP2pBytes)",
            bytes, link_->peer().text.c_str(), most_bytes_);
    return Status::bad_argument;
  }
  if (memory == nullptr || memory->device != device_ || !memory->covers(data, bytes)) {
    TP_WARN(
        "isend of %zu bytes at %p to %s: the buffer is not inside its registration on this device "
        "(%zu bytes at 0x%llx)",
        bytes, data, link_->peer().text.c_str(), memory == nullptr ? 0 : memory->length,
        memory == nullptr ? 0ULL : static_cast<unsigned long long>(memory->address));
    return Status::bad_argument;
  }
  stage = memory->type == MemoryType::cuda && !plan_.direct(bytes);
  if (stage ? memory->mirror == nullptr : !memory->direct)
    return not_reachable("isend", link_->peer().text, *memory, bytes);
  return Status::ok;
}

Status ProxySendComm::isend_watched(void* data, std::size_t bytes, int tag, Memory* memory,
                                    Request** request) {
  return isend_any(data, bytes, tag, static_cast<const ProxyMemory*>(memory), true, request);
}

Status ProxySendComm::isend_any(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                                bool watched, Request** request) {
  *request = nullptr;
  Special special{false, watched};
  TP_TRY(check(data, bytes, memory, special.stage));
  std::lock_guard hold(hub_->lock);
  // With the first: who never sends needs none.  Without memory it goes all the same, unseen.
  if (watched && flights_ == nullptr) [[unlikely]]
    flights_.reset(new (std::nothrow) Flights);
  return answer(data, bytes, tag, memory, special, request);
}

SendRequest* ProxySendComm::make_request() {
  return requests_.take([this](void* at, std::uint16_t slot) {
    return new (at) SendRequest(this, wr_base_ | std::uint64_t{slot} << 36);
  });
}

Status ProxySendComm::answer(void* data, std::size_t bytes, int tag, const ProxyMemory* memory,
                             Special special, Request** request) {
  *request = nullptr;
  if (link_->halted()) return no_cell_yet();
  if (coalescer_.group_open()) end_group();
  std::uint64_t seq = 0;
  if (!ring_.find(tag, seq) || requests_.full()) return no_cell_yet();
  const CellView cell = ring_.cell(seq);
  const CellMeta meta = cell.meta();
  if (!meta.valid()) {
    link_->fail("it wrote a clear-to-send cell that makes no sense (number %llu)",
                static_cast<unsigned long long>(seq));
    return Status::remote;
  }
  if (const std::uint32_t room = cell.bytes(); bytes > room) {
    warn_truncated(bytes, room);
    bytes = room;
    special.stage = special.stage && bytes > 0;
  }
  ring_.use(seq);
  if (meta.no_completion()) ring_.report().answered(seq);
  set_slow_from();
  SendRequest& r = *make_request();
  r.begin(data, bytes, memory, seq);
  if (special.stage) r.special_ = SendRequest::kStaged;
  if (meta.no_completion()) keep_cell(r, cell);
  const bool watched = special.watched && flights_ != nullptr;
  if (watched) flights_->begin(slot_of(r.wr_id_));
  *request = &r;
  const Outgoing m{static_cast<const std::uint8_t*>(data), memory,           cell, meta,
                   static_cast<std::uint32_t>(bytes),      slot_of(r.wr_id_)};
  if (special.stage)
    send_staged(r, m);
  else
    TP_TRY(send_now(r, m));
  if (watched) flights_->end();
  // Behind the message: its cell has been read, or copied.
  return ring_.report_due() ? tell_used() : Status::ok;
}

// Waiting for the peer's cell counts: it must not wait for a peer that has gone.
Status ProxySendComm::no_cell_yet() {
  if (!link_->halted() && ring_.lies())
    link_->fail("it says that it read parcels that were not sent (cell %llu)",
                static_cast<unsigned long long>(ring_.seen()));
  (void)link_->poll();
  in_vain(1);
  return link_->broken() ? Status::remote : Status::again;
}

void ProxySendComm::warn_truncated(std::size_t sent, std::size_t posted) {
  if (warned_truncated_) return;
  warned_truncated_ = true;
  TP_WARN(
      "a send of %zu bytes to %s met a receive of %zu bytes and was cut to it (further ones "
      "are not reported); ranks disagree on the message size",
      sent, link_->peer().text.c_str(), posted);
}

// Failures, and what is no message's.
void ProxySendComm::on_other(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS)
    link_->fail_completion(decode_wr_id(wc.wr_id), wc);
  else if (kind_of(wc.wr_id) == WrKind::probe)
    link_->answered(wc);
}

void ProxySendComm::on_completion(const ibv_wc& wc) {
  const std::uint16_t slot = slot_of(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS || !requests_.made(slot) || requests_.at(slot).wr_id_ != wc.wr_id)
      [[unlikely]] {
    on_other(wc);
    return;
  }
  SendRequest& last = requests_.at(slot);
  const int pending = last.pending();
  if (pending == 0) [[unlikely]]
    return;
  last.set_pending(pending - 1);
  if (last.small_) {
    last.small_ = false;
    coalescer_.small_arrived();
  }
  if (last.block_ != kNoBlock || last.before_ != SendRequest::kNone || last.special_ != 0)
      [[unlikely]]
    batch_completed(last, wc);
}

void ProxySendComm::batch_completed(SendRequest& last, const ibv_wc& wc) {
  if ((last.special_ & SendRequest::kChunked) != 0) --staged_writes_;
  if ((last.special_ & SendRequest::kTimed) != 0) end_timing(last, wc);
  if ((last.special_ & SendRequest::kPaced) != 0) piece_arrived(wc);
  if ((last.special_ & SendRequest::kWatched) != 0) leg_arrived(last, wc);
  if (last.block_ != kNoBlock) pools_[last.pool_]->give(std::exchange(last.block_, kNoBlock));
  // Those before it in its batch have no completion of their own, and stay active until now.
  for (std::uint16_t slot = std::exchange(last.before_, SendRequest::kNone);
       slot != SendRequest::kNone;) {
    SendRequest& r = requests_.at(slot);
    r.set_pending(0);
    slot = r.before_;
  }
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
  const Staging staging = staging_of(plan_);
  auto made = link_->if_reached(core_->devices->register_memory(device_, data, bytes, type,
                                                                dmabuf_offset, dmabuf_fd, staging));
  if (made && type == MemoryType::cuda && staging != Staging::never) prepare_staging();
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
       slot = requests_.at(slot).before_) {
    if (requests_.at(slot).memory_ != &memory) continue;
    (void)post_held(true);
    break;
  }
  forget(memory);
}

}  // namespace twinpath
