#include "plugin/fabric/soft/gpu_words.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "plugin/base/wait_within.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/gpu/engine.h"

namespace twinpath::soft {
namespace {

constexpr std::int64_t kCopyLimit = 5 * kSecond;  // what takes longer does not end
constexpr std::uint64_t kOrder = 0x6d6c7835;      // all of them one after the other

struct Held {
  std::uint64_t bytes = 0;
  int gpu = -1;
};

// What is held, by its first address.  Process-wide, as the model is (mlx5_table.cc).
class Ranges {
 public:
  static Ranges& of_process() {
    static auto* const all = new Ranges;
    return *all;
  }
  void add(std::uint64_t address, const Held& held) {
    const std::lock_guard hold(lock_);
    held_.emplace(address, held);
  }
  void remove(std::uint64_t address) {
    const std::lock_guard hold(lock_);
    held_.erase(held_.find(address));
  }
  int gpu_of(std::uint64_t address, std::size_t bytes) {
    const std::lock_guard hold(lock_);
    auto at = held_.upper_bound(address);
    if (at == held_.begin()) return -1;
    --at;
    return address + bytes <= at->first + at->second.bytes ? at->second.gpu : -1;
  }

 private:
  std::mutex lock_;
  std::multimap<std::uint64_t, Held> held_;
};

// Owned by the copy thread until it is done, for its waiter may have given up.
struct Copy : gpu::CopyJob {
  std::vector<std::uint8_t> stage;
  std::atomic<int> state{0};  // 0 under way, 1 done, -1 failed
};

std::shared_ptr<Copy> begin(std::uint64_t address, int gpu, std::size_t bytes, const void* from) {
  struct Shared : Copy {
    std::shared_ptr<Copy> self;
  };
  auto copy = std::make_shared<Shared>();
  copy->stage.resize(bytes);
  const gpu::CopyEnd here{reinterpret_cast<std::uintptr_t>(copy->stage.data()), -1};
  const gpu::CopyEnd there{address, gpu};
  copy->to = from != nullptr ? there : here;
  copy->from = from != nullptr ? here : there;
  if (from != nullptr) std::memcpy(copy->stage.data(), from, bytes);
  copy->bytes = bytes;
  copy->executor = gpu;
  copy->order = kOrder;
  copy->self = copy;
  copy->done = [](gpu::CopyJob* job, Status status) {
    const auto self = std::move(static_cast<Shared*>(job)->self);
    self->state.store(status == Status::ok ? 1 : -1, std::memory_order_release);
  };
  if (gpu::submit_copy(copy.get()) == Status::ok) return copy;
  copy->self = nullptr;
  return nullptr;
}

bool wait(const std::shared_ptr<Copy>& copy) {
  if (copy == nullptr) return false;
  return wait_within(kCopyLimit,
                     [&] { return copy->state.load(std::memory_order_acquire) != 0; }) &&
         copy->state.load(std::memory_order_relaxed) == 1;
}

struct Hold {
  explicit Hold(std::uint64_t where) : address(where) {}
  ~Hold() { Ranges::of_process().remove(address); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  const std::uint64_t address;
  std::shared_ptr<gpu::ImportedAllocation> reach;
};

}  // namespace

std::shared_ptr<void> hold_gpu_memory(std::uint64_t address, std::size_t bytes) {
  const auto* const p = reinterpret_cast<const void*>(address);
  const gpu::PointerInfo info = gpu::inspect_pointer(p);
  if (info.kind != gpu::MemoryKind::cuda) return nullptr;
  gpu::prepare_copies(info.gpu, gpu::kPrepareLimit);
  std::shared_ptr<gpu::ImportedAllocation> reach;
  if (auto kept = gpu::keep_in_reach(p, bytes)) reach = std::move(kept).take();
  Ranges::of_process().add(address, {bytes, info.gpu});
  auto hold = std::make_shared<Hold>(address);
  hold->reach = std::move(reach);
  return hold;
}

bool read_gpu_memory(std::uint64_t address, void* to, std::size_t bytes) {
  const int gpu = Ranges::of_process().gpu_of(address, bytes);
  if (gpu < 0) return false;
  const auto copy = begin(address, gpu, bytes, nullptr);
  if (!wait(copy)) return false;
  std::memcpy(to, copy->stage.data(), bytes);
  return true;
}

bool write_gpu_memory(std::uint64_t address, const void* from, std::size_t bytes,
                      std::size_t after) {
  // Aligned words of 8 bytes are written as such, which is faster than a copy.
  if (after != 0 && after < 8 && bytes >= 8 && (address + bytes) % 8 == 0) after = 8;
  const int gpu = Ranges::of_process().gpu_of(address, bytes);
  if (gpu < 0 || after > bytes) return false;
  const std::size_t first = bytes - after;
  std::shared_ptr<Copy> body, end;
  if (first != 0 && (body = begin(address, gpu, first, from)) == nullptr) return false;
  if (after != 0) {
    // The order holds completions only: a write-value may pass a copy before it.
    if (first != 0 && !wait(body)) return false;
    end = begin(address + first, gpu, after, static_cast<const std::uint8_t*>(from) + first);
    return wait(end);
  }
  return wait(body);
}

int push_by_reading(ibv_pd* pd, std::uint64_t address, std::uint32_t bytes, std::uint32_t lkey) {
  Hca& hca = *static_cast<SoftDevice*>(pd->context->device)->hca;
  const HeldKey key =
      hca.keys().view().hold(lkey, address, bytes, 0, static_cast<SoftPd*>(pd)->number);
  if (!key) return EACCES;
  const bool there = key.kind != static_cast<std::uint32_t>(MemoryKind::cuda) ||
                     !hca.posted().on() || hca.posted().push(key.pd, key.gpu);
  KeyView::drop(key);
  return there ? 0 : EAGAIN;
}

}  // namespace twinpath::soft
