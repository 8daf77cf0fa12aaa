// See team_copy.h.
#include "plugin/fabric/soft/team_copy.h"

#include <sys/uio.h>

#include <cstring>

#include "plugin/fabric/soft/stream_copy.h"

namespace twinpath::soft {
namespace {

HeldKey hold_guarded(const TeamCopy::Guard& g, std::uint64_t bytes) {
  return g.keys.hold(g.key, g.address, bytes, g.access, g.pd);
}

Chunk copy_claimed(TeamCopy& c, int who) {
  std::uint64_t offset = 0;
  if (!claim_chunk(c, offset)) return Chunk::none;
  if (move_host(c.pid, c.near + offset, c.far + offset, chunk_bytes(c.total, offset), c.to_far,
                c.stream))
    return Chunk::copied;
  c.failed[static_cast<std::size_t>(who)].store(static_cast<std::uint32_t>(1 + offset / kChunk),
                                                std::memory_order_relaxed);
  return Chunk::failed;
}

}  // namespace

void TeamCopy::begin(std::uint32_t message, int process, bool write, std::uint64_t near_address,
                     std::uint64_t far_address, std::uint64_t bytes, Claim& next) {
  id = message;
  pid = process;
  to_far = write;
  alone = false;
  near = near_address;
  far = far_address;
  total = bytes;
  claim = &next;
  left = 0;
  looks = 0;
  near_guard = far_guard = {};
  for (auto& f : failed) f.store(0, std::memory_order_relaxed);
}

std::uint32_t TeamCopy::take_failed() {
  std::atomic<std::uint32_t>* lowest = nullptr;
  for (auto& f : failed) {
    const std::uint32_t chunk = f.load(std::memory_order_relaxed);
    if (chunk != 0 && (lowest == nullptr || chunk < lowest->load(std::memory_order_relaxed)))
      lowest = &f;
  }
  return lowest != nullptr ? lowest->exchange(0, std::memory_order_relaxed) : 0;
}

std::uint64_t chunks_left(const TeamCopy& c) {
  const std::uint64_t v = c.claim->next.load(std::memory_order_relaxed);
  const std::uint64_t begun = v & 0xffffffffu, all = (c.total + kChunk - 1) / kChunk;
  return v >> 32 == c.id && begun < all ? all - begun : 0;
}

bool begun(const TeamCopy& c) {
  return c.claim->next.load(std::memory_order_relaxed) != std::uint64_t{c.id} << 32;
}

bool claim_chunk(const TeamCopy& c, std::uint64_t& offset) {
  std::uint64_t v = c.claim->next.load(std::memory_order_acquire);
  for (;;) {
    offset = (v & 0xffffffffu) * kChunk;
    if (v >> 32 != c.id || offset >= c.total) return false;
    if (c.claim->next.compare_exchange_weak(v, v + 1, std::memory_order_acq_rel)) return true;
  }
}

bool move_host(int pid, std::uint64_t near, std::uint64_t far, std::uint64_t bytes, bool to_far,
               bool stream) {
  if (pid == 0) {
    auto* to = reinterpret_cast<void*>(to_far ? far : near);
    const auto* from = reinterpret_cast<const void*>(to_far ? near : far);
    if (stream) {
      stream_copy(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
    return true;
  }
  while (bytes != 0) {
    iovec l{reinterpret_cast<void*>(near), bytes}, r{reinterpret_cast<void*>(far), bytes};
    const ssize_t n =
        to_far ? process_vm_writev(pid, &l, 1, &r, 1, 0) : process_vm_readv(pid, &l, 1, &r, 1, 0);
    if (n <= 0) return false;
    near += static_cast<std::uint64_t>(n);
    far += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
  return true;
}

Chunk copy_chunk(TeamCopy& c, int who, bool guarded) {
  if (!guarded) return copy_claimed(c, who);
  // Held before a chunk is claimed: a claimed one must be copied.
  Chunk done = Chunk::refused;
  const HeldKey near = c.near_guard.keys.valid() ? hold_guarded(c.near_guard, c.total) : HeldKey{};
  if (near || !c.near_guard.keys.valid()) {
    const HeldKey far = c.far_guard.keys.valid() ? hold_guarded(c.far_guard, c.total) : HeldKey{};
    if (far || !c.far_guard.keys.valid()) done = copy_claimed(c, who);
    if (far) KeyView::drop(far);
  }
  if (near) KeyView::drop(near);
  return done;
}

}  // namespace twinpath::soft
