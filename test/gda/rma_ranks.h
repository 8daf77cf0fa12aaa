#pragma once
// What tests of host RMA share: a rank's team, windows and waits.  Ranks are those of gin_ranks.h.
#include <sched.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "gda/rma/rma_transport.h"
#include "plugin/base/clock.h"
#include "test/gda/gin_ranks.h"
#include "test/support/pattern.h"

namespace twinpath::test {

struct RmaMember {
  std::unique_ptr<gda::RmaTransport> transport;
  std::unique_ptr<gda::RmaComm> comm;
  std::unique_ptr<gda::RmaContext> context;  // null: one of them could not be made
};

// Collective.  `device` -1: ranks in turn on each.
inline RmaMember rma_join(const Rank& r, const gda::RmaSettings& settings = {}, int device = -1) {
  RmaMember member;
  auto transport = gda::make_rma_transport(r.devices);
  if (!transport) return member;
  member.transport = std::move(transport).take();
  HandleBytesArray mine{};
  if (device < 0) device = r.rank % static_cast<int>(r.devices->count());
  auto listener = member.transport->listen(device, mine);
  const auto handles = r.meeting->exchange(mine);
  if (!listener) return member;
  auto comm = member.transport->connect(handles, r.rank, **listener, {});
  if (!comm) return member;
  member.comm = std::move(comm).take();
  auto context = member.comm->create_context(settings);
  if (context) member.context = std::move(context).take();
  return member;
}

// Memory registered as a window.
class RmaMemory {
 public:
  // Collective.
  RmaMemory(gda::RmaComm& comm, std::size_t bytes) : comm_(comm), words_((bytes + 7) / 8) {
    auto window = comm.register_window(words_.data(), bytes, MemoryType::host, 0, -1, {});
    if (window) window_ = *window;
  }
  ~RmaMemory() { release(); }
  RmaMemory(const RmaMemory&) = delete;
  RmaMemory& operator=(const RmaMemory&) = delete;
  void release() {
    if (window_ != nullptr) (void)comm_.deregister_window(window_);
    window_ = nullptr;
  }
  explicit operator bool() const { return window_ != nullptr; }
  gda::RmaPlace at(std::uint64_t offset) const { return {window_, offset}; }
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(words_.data()); }
  std::uint64_t word(std::size_t offset) {
    return std::atomic_ref(words_[offset / 8]).load(std::memory_order_acquire);
  }

 private:
  gda::RmaComm& comm_;
  std::vector<std::uint64_t> words_;
  gda::RmaWindow* window_ = nullptr;
};

inline KnownBytes rma_bytes(int from, int to, int round) {
  return KnownBytes(static_cast<std::size_t>(from * 50 + to * 20 + round * 7 + 1));
}
inline std::uint8_t rma_byte(int from, int to, int round, std::size_t i) {
  return rma_bytes(from, to, round)[i];
}

// Until the request is done; else what was wrong.
inline Status rma_wait(gda::RmaRequest* request, std::int64_t limit = kLimit) {
  if (request == nullptr) return Status::ok;
  const std::int64_t end = now_ns() + limit;
  for (;;) {
    bool done = false;
    if (const Status s = request->test(done); s != Status::ok) return s;
    if (done) return Status::ok;
    if (now_ns() > end) return Status::again;
    sched_yield();
  }
}

// Until the word has come to `value`, making progress meanwhile as NCCL's thread does.
template <class Memory>
bool rma_await(gda::RmaContext& context, Memory& memory, std::size_t offset, std::uint64_t value,
               std::int64_t limit = kLimit) {
  const std::int64_t end = now_ns() + limit;
  while (memory.word(offset) < value) {
    (void)context.progress();
    if (now_ns() > end) return false;
    sched_yield();
  }
  return true;
}

}  // namespace twinpath::test

#define EXPECT_RMA_OK(result) EXPECT_GIN((result) == ::twinpath::Status::ok, __LINE__)
