#pragma once
// One GPU that is not there: a fake CUDA driver whose "GPU memory" is ordinary memory.
//
// A stream keeps the operations it is given and a thread of the fake runs them later, as a GPU
// would, so copies really are under way while the transport does other things.  When `slow`, it
// waits between operations and takes the streams in turn, so that streams drift apart.
//
// The driver's functions are plain pointers, so the fake is one object per process.  It must
// outlive every transport that has seen its memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/page_size.h"
#include "plugin/gpu/driver.h"
#include "plugin/transport.h"

namespace twinpath::test {

class FakeGpu {
 public:
  FakeGpu() : table_(make_table()) {
    self = this;
    thread_ = std::thread([this] { run(); });
    gpu::cuda::set_driver_for_test(&table_);
  }
  ~FakeGpu() {
    hold_copies_at({});
    pause(false);
    gpu::stop_copy_threads();
    gpu::cuda::set_driver_for_test(nullptr);
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
      changed_.notify_all();
    }
    thread_.join();
    self = nullptr;
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // Makes [at, at + bytes) memory of GPU 0, and ordinary again.
  void own(const void* at, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    memory_[reinterpret_cast<std::uint64_t>(at)] = bytes;
  }
  void disown(const void* at) {
    std::lock_guard lock(mutex_);
    memory_.erase(reinterpret_cast<std::uint64_t>(at));
  }
  // Streams whose next copy begins at one of these addresses, at either end, wait.
  void hold_copies_at(std::set<const void*> addresses) {
    std::lock_guard lock(mutex_);
    held_at_ = std::move(addresses);
    changed_.notify_all();
  }
  // The stream that is next given a copy which begins there waits at it, and no other; null: it
  // goes on.
  void hold_next_copy_at(const void* address) {
    std::lock_guard lock(mutex_);
    next_at_ = address;
    stuck_ = nullptr;
    changed_.notify_all();
  }
  bool holds_copy_at(const void* address) {
    std::lock_guard lock(mutex_);
    return std::any_of(streams_.begin(), streams_.end(), [&](const Work* s) {
      return held(*s) && (s->queue.front().to == address || s->queue.front().from == address);
    });
  }
  // Whether it has been given what it has not executed yet.
  bool has_work() {
    std::lock_guard lock(mutex_);
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const Work* s) { return !s->queue.empty(); });
  }
  // Nothing is executed while paused.
  void pause(bool on) {
    std::lock_guard lock(mutex_);
    paused_ = on;
    changed_.notify_all();
  }

  // Exports of memory, and the flags of the last.
  std::atomic<int> exports{0};
  std::atomic<unsigned long long> export_flags{0};
  // For functions that this has not; before anything uses them.
  gpu::cuda::Driver& table() { return table_; }

  std::atomic<bool> slow{false};
  // Copies of words of 8 bytes store each at once, for who polls what a copy writes.
  std::atomic<bool> whole_words{false};
  // Copies from or to this address are refused.
  std::atomic<std::uint64_t> bad_address{0};
  // Allocations of pinned memory of that many bytes fail.
  std::atomic<std::size_t> refused_bytes{0};
  // Pinned allocations alive, those of the copy thread among them.
  std::atomic<int> pinned{0};
  std::atomic<int> copies{0};

 private:
  using Result = gpu::cuda::Result;
  using Address = gpu::cuda::Address;
  using Stream = gpu::cuda::Stream;
  struct Operation {
    const void *to, *from;
    std::function<void()> execute;
  };
  struct Work {
    std::deque<Operation> queue;
  };
  static inline FakeGpu* self = nullptr;
  static void* pointer(std::uint64_t a) { return reinterpret_cast<void*>(a); }

  void run() {
    std::unique_lock lock(mutex_);
    Work* last = nullptr;
    while (!quit_) {
      Work* ready = nullptr;
      if (!paused_)
        for (Work* s : streams_)
          if (!s->queue.empty() && !held(*s) && (ready == nullptr || ready == last)) ready = s;
      last = ready;
      if (ready == nullptr) {
        changed_.wait(lock);
        continue;
      }
      if (slow) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(150));
        lock.lock();
      }
      ready->queue.front().execute();
      ready->queue.pop_front();
    }
  }

  bool held(const Work& s) const {
    if (s.queue.empty()) return false;
    const Operation& first = s.queue.front();
    return held_at_.count(first.to) != 0 || held_at_.count(first.from) != 0 ||
           (stuck_ == &s && (first.to == next_at_ || first.from == next_at_));
  }
  Result enqueue(Stream stream, Address to, Address from, std::function<void()> f) {
    if (stuck_ == nullptr && next_at_ != nullptr &&
        (pointer(to) == next_at_ || pointer(from) == next_at_))
      stuck_ = static_cast<Work*>(stream);
    static_cast<Work*>(stream)->queue.push_back({pointer(to), pointer(from), std::move(f)});
    changed_.notify_all();
    return 0;
  }
  Result copy(Address to, Address from, std::size_t n, Stream s) {
    if (bad_address != 0 && (to == bad_address || from == bad_address)) return 1;
    ++copies;
    if (whole_words && (to | from | n) % sizeof(std::uint64_t) == 0)
      return enqueue(s, to, from, [=] {
        auto* const words = static_cast<std::uint64_t*>(pointer(to));
        auto* const source = static_cast<std::uint64_t*>(pointer(from));
        for (std::size_t i = 0; i < n / sizeof *words; ++i)
          std::atomic_ref(words[i]).store(
              std::atomic_ref(source[i]).load(std::memory_order_acquire),
              std::memory_order_release);
      });
    return enqueue(s, to, from, [=] { std::memcpy(pointer(to), pointer(from), n); });
  }
  Result write(Stream s, Address to, std::uint64_t value) {
    return enqueue(s, to, to, [=] {
      std::atomic_ref(*static_cast<std::uint64_t*>(pointer(to)))
          .store(value, std::memory_order_release);
    });
  }
  Result attributes(unsigned count, int* which, void** to, Address p) {
    auto at = memory_.upper_bound(p);
    if (at == memory_.begin()) return 1;
    --at;
    if (p - at->first >= at->second) return 1;
    for (unsigned i = 0; i < count; ++i) {
      switch (which[i]) {
        case gpu::cuda::kAttributeMemoryType:
          *static_cast<unsigned*>(to[i]) = gpu::cuda::kMemoryTypeDevice;
          break;
        case gpu::cuda::kAttributeManaged:
          *static_cast<unsigned*>(to[i]) = 0;
          break;
        case gpu::cuda::kAttributeOrdinal:
          *static_cast<int*>(to[i]) = 0;
          break;
        case gpu::cuda::kAttributeLegacyIpc:
          *static_cast<unsigned*>(to[i]) = 1;
          break;
        case gpu::cuda::kAttributeRangeStart:
        case gpu::cuda::kAttributeMappingBase:
          *static_cast<std::uint64_t*>(to[i]) = at->first;
          break;
        default:
          *static_cast<std::uint64_t*>(to[i]) = at->second;
          break;
      }
    }
    return 0;
  }

  // As the driver does: whole pages of the host, of one piece of memory, which has whole pages.
  Result export_range(int* fd, Address at, std::size_t bytes, int type, unsigned long long flags) {
    constexpr int kDmaBuf = 1, kInvalid = 1;
    if (type != kDmaBuf || flags > 1 || bytes == 0 || page_offset(at) != 0 ||
        page_offset(bytes) != 0)
      return kInvalid;
    const bool inside = std::any_of(memory_.begin(), memory_.end(), [&](const auto& m) {
      return page_start(m.first) <= at && at + bytes <= page_end(m.first + m.second);
    });
    if (!inside) return kInvalid;
    *fd = ::memfd_create("dma-buf", MFD_CLOEXEC);
    if (*fd < 0 || ::ftruncate(*fd, static_cast<off_t>(bytes)) != 0) return kInvalid;
    ++exports;
    export_flags = flags;
    return 0;
  }

  static gpu::cuda::Driver make_table() {
    gpu::cuda::Driver d;
    d.get_error_name = [](int, const char** name) { return *name = "FAKE_ERROR", 0; };
    d.device_count = [](int* n) { return *n = 1, 0; };
    d.device_uuid = [](void* uuid, int) { return std::memset(uuid, 7, 16), 0; };
    d.can_access_peer = [](int* yes, int, int) { return *yes = 0, 0; };
    d.primary_retain = [](gpu::cuda::Context* c, int) { return *c = self, 0; };
    d.primary_release = [](int) { return 0; };
    d.primary_state = [](int, unsigned*, int* active) { return *active = 1, 0; };
    d.ctx_push = [](gpu::cuda::Context) { return 0; };
    d.ctx_pop = [](gpu::cuda::Context*) { return 0; };
    d.ctx_set = [](gpu::cuda::Context) { return 0; };
    d.exchange_capture_mode = [](int*) { return 0; };
    d.handle_retain = [](gpu::cuda::Handle*, void*) { return 1; };  // cudaMalloc memory
    d.pointer_attributes = [](unsigned count, int* which, void** to, Address p) {
      std::lock_guard lock(self->mutex_);
      return self->attributes(count, which, to, p);
    };
    d.range_handle = [](void* fd, Address at, std::size_t n, int type, unsigned long long flags) {
      std::lock_guard lock(self->mutex_);
      return self->export_range(static_cast<int*>(fd), at, n, type, flags);
    };
    d.host_alloc = [](void** p, std::size_t n, unsigned) {
      *p = n == self->refused_bytes ? nullptr : std::aligned_alloc(4096, (n + 4095) / 4096 * 4096);
      if (*p == nullptr) return 2;
      ++self->pinned;
      std::memset(*p, 0x5c, n);
      return 0;
    };
    d.host_free = [](void* p) {
      --self->pinned;
      return std::free(p), 0;
    };
    d.stream_create = [](Stream* s, unsigned) {
      std::lock_guard lock(self->mutex_);
      auto* made = new Work;
      self->streams_.insert(made);
      *s = made;
      return 0;
    };
    d.stream_destroy = [](Stream s) {
      std::lock_guard lock(self->mutex_);
      self->streams_.erase(static_cast<Work*>(s));
      delete static_cast<Work*>(s);
      return 0;
    };
    d.stream_query = [](Stream s) {
      std::lock_guard lock(self->mutex_);
      return static_cast<Work*>(s)->queue.empty() ? 0 : gpu::cuda::kNotReady;
    };
    d.copy_async = [](Address to, Address from, std::size_t n, Stream s) {
      std::lock_guard lock(self->mutex_);
      return self->copy(to, from, n, s);
    };
    d.write_value64 = [](Stream s, Address to, std::uint64_t value, unsigned) {
      std::lock_guard lock(self->mutex_);
      return self->write(s, to, value);
    };
    d.batch_mem_op = [](Stream s, unsigned count, gpu::cuda::MemOp* ops, unsigned) {
      std::lock_guard lock(self->mutex_);
      for (unsigned i = 0; i < count; ++i)
        if (self->bad_address != 0 && ops[i].address == self->bad_address) return 1;
      for (unsigned i = 0; i < count; ++i)
        if (int r = self->write(s, ops[i].address, ops[i].value); r != 0) return r;
      return 0;
    };
    return d;
  }

  gpu::cuda::Driver table_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Work*> streams_;
  std::map<std::uint64_t, std::size_t> memory_;
  std::set<const void*> held_at_;
  const void* next_at_ = nullptr;
  const Work* stuck_ = nullptr;
  bool paused_ = false, quit_ = false;
  std::thread thread_;
};

// Memory of the fake GPU registered on a comm as NCCL does it: whole pages exported, and the
// descriptor closed behind it.
template <class C>
auto register_gpu_memory(C& comm, void* at, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  int fd = -1;
  (void)gpu::cuda::driver()->range_handle(&fd, page_start(address),
                                          page_end(address + bytes) - page_start(address), 1, 0);
  const UniqueFd closed(fd);
  return comm.register_memory(at, bytes, MemoryType::cuda, page_offset(address), fd);
}

}  // namespace twinpath::test
