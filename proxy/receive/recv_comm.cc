#include "proxy/receive/recv_comm.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "plugin/base/log.h"
#include "proxy/queues/shared_pairs.h"

namespace twinpath {
namespace {
constexpr std::uint32_t kMostCapacity = std::numeric_limits<std::uint32_t>::max();
}

ProxyRecvComm::ProxyRecvComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : hub_(&parts.link->hub()),
      device_(device),
      optional_allowed_(core->devices->config().optional_recv_completion),
      keys_(parts.link->has_reserve()),
      core_(std::move(core)),
      box_(std::move(parts.ring)),
      shadow_(std::move(parts.shadow)),
      link_(std::move(parts.link)),
      // One queue for all cells, so that the sender sees them early: it looks at them in order.
      cts_(shadow_.get(), parts.layout, link_->queue(0), parts.remote_memory, parts.remote_rkeys[0],
           link_->comm_id(), link_->can_fail_over()),
      counts_(link_->counts()),
      plan_(parts.plan),
      flushes_(this, *link_, core_),
      arrivals_(box_->data(), *counts_) {
  for (int q = 0; q < link_->queue_count(); ++q)
    arrivals_.serve(static_cast<std::size_t>(q), static_cast<std::size_t>(link_->queue(q).rail));
  hub_->attach(link_->comm_id(), this);
  link_->serve(this);
  core_->devices->attach(device_, *this);
}

ProxyRecvComm::~ProxyRecvComm() {
  link_->drain([this] {
    post_cells();
    return arrivals_.expects_data();
  });
  link_->serve(nullptr);
  // From here on completions find nobody, and so nothing is held, nor copied, any more.
  hub_->attach(link_->comm_id(), nullptr);
  {
    std::lock_guard hold(hub_->lock);
    hub_->drop_held(*this);
  }
  core_->devices->detach(*this);
  if (!link_->set().shares()) return;
  core_->shared.keep(std::move(box_));
  core_->shared.keep(std::move(shadow_));
}

// What was posted, what has arrived, and whose cells are known to be used.
Waiting ProxyRecvComm::waiting(int more) {
  return {arrivals_.requests().used() + more, progress()};
}

std::uint64_t ProxyRecvComm::progress() {
  Waiting w;
  w.add(cts_.ended());
  w.add(cts_.posted());
  arrivals_.for_counts([&w](std::uint8_t arrived) { w.add(arrived); });
  return w.progress;
}

// `watched`: kernels look at the memory and no completion is wanted.  NCCL's LL128 has one flag in
// 128 bytes, and no copy engine promises that these appear at once: what has keys is written to by
// the adapter, however far it is.
Status ProxyRecvComm::check(const RecvBuffers& buffers, bool watched, std::uint8_t& staged) const {
  if (buffers.count == 0 || buffers.count > static_cast<std::size_t>(kMaxRecvs)) {
    TP_WARN("irecv of %zu buffers; 1 to %d are possible", buffers.count, kMaxRecvs);
    return Status::bad_argument;
  }
  for (std::size_t i = 0; i < buffers.count; ++i) {
    void* const data = buffers.data[i];
    const std::size_t bytes = buffers.bytes[i];
    const auto* m = static_cast<const ProxyMemory*>(buffers.memory(i));
    if (bytes == 0) continue;
    if (m == nullptr || m->device != device_ || !m->covers(data, bytes)) {
      TP_WARN(
          "irecv of %zu bytes at %p from %s: the buffer is not inside its registration on this "
          "device (%zu bytes at 0x%llx)",
          bytes, data, link_->peer().text.c_str(), m == nullptr ? 0 : m->length,
          m == nullptr ? 0ULL : static_cast<unsigned long long>(m->address));
      return Status::bad_argument;
    }
    const bool stage =
        m->type == MemoryType::cuda && !plan_.direct(bytes) && !(watched && m->direct);
    if (stage ? m->mirror == nullptr : !m->direct)
      return not_reachable("irecv", link_->peer().text, *m, bytes);
    if (stage) staged = static_cast<std::uint8_t>(staged | 1u << i);
  }
  return Status::ok;
}

TP_ALWAYS_INLINE inline bool ProxyRecvComm::plain(const void* data, std::size_t bytes,
                                                  const Memory* memory) const {
  const auto* m = static_cast<const ProxyMemory*>(memory);
  return m != nullptr && m->plainly_covers(data, bytes, device_) && bytes <= kMostCapacity;
}

TP_ALWAYS_INLINE inline void ProxyRecvComm::offer_plain(const Plain& b, RecvRequest::Sub& sub,
                                                        const CtsLayout& layout, std::uint8_t* cell,
                                                        int first_key) {
  const auto* memory = static_cast<const ProxyMemory*>(b.memory);
  const auto capacity = static_cast<std::uint32_t>(b.bytes);
  sub.expect(static_cast<std::uint8_t*>(b.data), capacity, RecvRequest::Copied::straight);
  layout.fill(cell, reinterpret_cast<std::uintptr_t>(b.data), capacity, b.tag, b.meta, b.seq,
              [=, this](int rail) TP_ALWAYS_INLINE {
                return memory->rkey(rail == 0 ? first_key : keys_.rail(rail));
              });
}

RecvRequest* ProxyRecvComm::make_request() {
  return arrivals_.requests().take(
      [this](void* at, std::uint16_t slot) { return new (at) RecvRequest(this, slot); });
}

TP_ALWAYS_INLINE inline void ProxyRecvComm::post_new_cells() {
  if (const int error = cts_.post(); error != 0 || cts_.held() != 0) [[unlikely]]
    not_posted(error);
}

void ProxyRecvComm::post_cells() {
  if (!link_->halted() && cts_.held() != 0) post_new_cells();
}

void ProxyRecvComm::not_posted(int error) {
  // The send queue is full of writes whose completions nobody has polled, this comm's or of all
  // that share it.
  if (error == 0 || error == SharedPairs::kNoRoom)
    hub_->hold(*this);
  else
    link_->fail("cannot post a clear-to-send write on QP %u: %s (errno %d)",
                link_->queue(link_->set().first()).qp->qp_num, std::strerror(error), error);
}

// A request with its cells; null when there is no room, or the link is broken.
TP_ALWAYS_INLINE inline RecvRequest* ProxyRecvComm::begin(unsigned count, unsigned staged,
                                                          bool optional) {
  if (!cts_.room_for(count)) [[unlikely]]
    look_in_box();
  if (link_->halted() || !cts_.room_for(count)) [[unlikely]]
    return nullptr;
  RecvRequest* r = arrivals_.requests().take_again();
  if (r == nullptr && (r = make_request()) == nullptr) [[unlikely]]
    return nullptr;
  if (cts_.held() != 0 && !cts_.room_to_hold(count)) [[unlikely]]
    post_cells();
  r->begin(count, staged, optional);
  r->first_cell_ = cts_.add(count, optional);
  return r;
}

// The short way, of host memory and with a notice: here of one buffer, below of a group; the rest
// is in irecv_any().
Status ProxyRecvComm::irecv(const RecvBuffers& buffers, bool completion_optional,
                            Request** request) {
  if (completion_optional) [[unlikely]]
    return irecv_any(buffers, true, request);
  if (buffers.count != 1) return irecv_group(buffers, request);
  void* const data = buffers.data[0];
  const std::size_t bytes = buffers.bytes[0];
  Memory* const memory = buffers.memory(0);
  if (!plain(data, bytes, memory)) [[unlikely]]
    return irecv_any(buffers, false, request);
  std::lock_guard hold(hub_->lock);
  RecvRequest* const r = begin(1, 0, false);
  *request = r;
  if (r == nullptr) [[unlikely]]
    return no_room_yet();
  const std::uint64_t seq = r->first_cell_;
  const std::uint32_t meta = cell_meta({r->bits_, 0, 0, 1, false, true}, arrivals_.frontier());
  offer_plain({data, bytes, buffers.tags[0], memory, meta, seq}, r->subs_[0], cts_.layout(),
              cts_.cell(seq), keys_.rail(0));
  keys_.remember(seq, memory);
  // What a small receive brings is cheaper than the write of a cell.
  if (cts_.open() != 0 && bytes <= kPatientReceive) return wait_or_post();
  post_new_cells();
  return Status::ok;
}

Status ProxyRecvComm::irecv_group(const RecvBuffers& buffers, Request** request) {
  // Copies, which stores through other pointers cannot change: the compiler keeps them.
  const std::size_t count = buffers.count;
  void* const* const data = buffers.data;
  const std::size_t* const bytes = buffers.bytes;
  const int* const tags = buffers.tags;
  void* const* const memories = buffers.memories;
  if (count - 1 >= static_cast<std::size_t>(kMaxRecvs)) [[unlikely]]
    return irecv_any(buffers, false, request);
  for (std::size_t i = 0; i != count; ++i)
    if (!plain(data[i], bytes[i], static_cast<Memory*>(memories[i]))) [[unlikely]]
      return irecv_any(buffers, false, request);
  std::lock_guard hold(hub_->lock);
  RecvRequest* const r = begin(static_cast<unsigned>(count), 0, false);
  *request = r;
  if (r == nullptr) [[unlikely]]
    return no_room_yet();
  const int first_key = keys_.rail(0);
  const std::uint64_t first = r->first_cell_;
  const auto offer_all = [&](const CtsLayout layout) TP_ALWAYS_INLINE {
    std::uint32_t meta = cell_meta({r->bits_, 0, 0, static_cast<std::uint32_t>(count), false, true},
                                   arrivals_.frontier());
    RecvRequest::Sub* sub = r->subs_.data();
    std::uint8_t* cell = cts_.cell(first);
    const std::size_t row = cts_.in_a_row(first);  // behind those the places begin anew
    for (std::size_t i = 0; i != count; ++i, ++sub, cell += layout.stride(), meta += kOneSub) {
      if (i == row) [[unlikely]]
        cell = cts_.cell(first + i);
      offer_plain({data[i], bytes[i], tags[i], static_cast<Memory*>(memories[i]), meta, first + i},
                  *sub, layout, cell, first_key);
    }
  };
  // Nearly all receivers have one rail, and then the compiler knows the layout.
  if (cts_.layout().wide()) [[unlikely]]
    offer_all(cts_.layout());
  else
    offer_all(CtsLayout(1));
  if (keys_.change()) [[unlikely]]
    for (std::size_t i = 0; i != count; ++i) keys_.remember(first + i, buffers.memory(i));
  post_new_cells();
  return Status::ok;
}

Status ProxyRecvComm::irecv_any(const RecvBuffers& buffers, bool completion_optional,
                                Request** request) {
  *request = nullptr;
  std::uint8_t staged = 0;
  TP_TRY(check(buffers, completion_optional, staged));
  const auto count = static_cast<unsigned>(buffers.count);
  std::lock_guard hold(hub_->lock);
  const bool optional = completion_optional && count == 1 && staged == 0 && optional_allowed_;
  RecvRequest* r = begin(count, staged, optional);
  if (r == nullptr) return no_room_yet();
  *request = r;
  if (optional) r->sizes_[0] = 0;  // nothing says what comes, and the slot has been another's
  for (unsigned i = 0; i < count; ++i) offer(*r, i, buffers);
  post_cells();
  return Status::ok;
}

void ProxyRecvComm::offer(RecvRequest& r, unsigned index, const RecvBuffers& buffers) {
  const std::size_t bytes = buffers.bytes[index];
  const auto* memory = static_cast<const ProxyMemory*>(buffers.memory(index));
  const auto capacity = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, kMostCapacity));
  const bool staged = (r.staged_ >> index & 1) != 0;
  const bool copyable = bytes == 0 || staged || memory->type == MemoryType::host;
  RecvRequest::Sub& sub = r.subs_[index];
  sub.expect(static_cast<std::uint8_t*>(buffers.data[index]), capacity,
             !copyable ? RecvRequest::Copied::never
             : staged  ? RecvRequest::Copied::to_mirror
                       : RecvRequest::Copied::straight);
  if (staged) {
    arrivals_.stage(r, index, *memory);
    memory = &memory->mirror->memory;
  }
  const std::uint32_t meta =
      cell_meta({r.bits_, index, 0, r.count_, r.optional_, copyable}, arrivals_.frontier());
  const std::uint64_t seq = r.first_cell_ + index;
  cts_.layout().fill(cts_.cell(seq), reinterpret_cast<std::uintptr_t>(sub.to), sub.capacity,
                     buffers.tags[index], meta, seq,
                     [&](int i) { return bytes > 0 ? memory->rkey(keys_.rail(i)) : 0; });
  keys_.remember(seq, buffers.memory(index));
}

Status ProxyRecvComm::wait_or_post() {
  if (cts_.held() == 1) patience_ = 0;
  if (!cts_.room_to_hold(1))
    post_cells();
  else
    hub_->hold(*this);
  return Status::ok;
}

void ProxyRecvComm::look_in_box() {
  // Whoever sees the number may write over the cells before it: the sender reads those no more.
  auto* word = reinterpret_cast<std::uint32_t*>(box_->data() + kUsedAt);
  cts_.learn_used(std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire));
  if constexpr (counters::kConnectionCounts) counts_->rails[0].messages.set(cts_.ended());
}

Status ProxyRecvComm::no_room_yet() {
  post_cells();
  (void)link_->poll();
  in_vain(false);
  return link_->broken() ? Status::remote : Status::again;
}

void ProxyRecvComm::in_vain(bool accepted) {
  if (link_->broken()) return;
  const auto cause = [this, accepted] {
    if (arrivals_.copying()) return counters::Wait::gpu_copy;
    return accepted ? counters::Wait::peer_data : counters::Wait::slots;
  };
  link_->waited(moved(), cause, [this] { return waiting(0); });
}

bool ProxyRecvComm::post_held(bool overdue) {
  if (link_->broken()) return false;
  if (arrivals_.copying()) copy_on();
  if (link_->halted()) return arrivals_.copying();
  if (cts_.held() > 0 && (overdue || cts_.due() || ++patience_ > kCtsPatience)) post_cells();
  return !link_->broken() && (cts_.held() > 0 || arrivals_.copying());
}

}  // namespace twinpath
