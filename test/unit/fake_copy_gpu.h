#pragma once
// A fake CUDA driver for the tests of the copy threads.
//
// "GPU" memory is ordinary memory.  A stream of the fake keeps the operations it is given, and a
// thread of the fake runs them later, one of any stream that can go on, as a GPU would; the pinned
// completion words are thus written by another thread, which is what TSan has to see.
//
// There are two GPUs: the test's memory is on GPU 0, GPU 1 gives memory when asked.  The driver's
// functions are plain pointers, so there is one fake per process.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/gpu/driver.h"
#include "plugin/gpu/lane.h"
#include "test/support/others_rest.h"

namespace twinpath::gpu::test_copies {

// False: it has to wait for something.
using Operation = std::function<bool()>;
struct FakeStream {
  std::deque<Operation> work;
  bool on_copy_engine = false;  // the last copy went that way
};
struct FakeContext {
  int gpu = -1;
};
struct FakeAllocation {
  int gpu = -1;
  std::size_t bytes = 0;
};

// The fake driver's functions are plain pointers, so their state is one object per process.
struct FakeGpu {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<FakeStream*> streams;
  FakeContext contexts[2] = {{0}, {1}};
  bool paused = false, quit = false;
  bool hold_landing = false;  // copies into the test's GPU memory wait
  // What is to fail.
  std::uint64_t bad_address = 0, bad_source = 0;
  std::atomic<bool> dead{false};
  bool batch_refused = false;
  int alloc_result = 0, peer_result = 0;
  std::atomic<int> host_alloc_ms{0};  // how long it takes
  std::atomic<bool> host_alloc_held{false};
  std::atomic<bool> in_use[2] = {true, true};
  bool peers = true;
  // What was seen.
  std::vector<std::size_t> batch_sizes;
  std::size_t copies = 0, mem_op_calls = 0, same_gpu_copies = 0;
  std::vector<std::uint64_t> written;  // where write-values went, the first ones
  std::size_t row_copies = 0, rows = 0;
  // Calls that wrote values where the stream is not on the copy engine.
  std::size_t bare_values = 0;
  std::size_t through_peer = 0;  // copies with an end in memory that GPU 1 gave
  std::size_t ran_out = 0;       // bytes that left GPU 0
  std::size_t alloc_calls = 0, host_allocs = 0;
  int retained[2] = {0, 0};
  std::map<std::uint64_t, FakeAllocation> allocations;
  std::uint64_t device_low = 0, device_high = 0;
  // What another process of the fake calls an allocation, by what its owner calls it.
  std::map<std::uint64_t, std::uint64_t> names_elsewhere;
  int opened = 0, registered = 0, mapped_on = -1;
  int register_result = 0;
  std::thread thread;

  bool on_device(std::uint64_t a) const { return a >= device_low && a < device_high; }
  int gpu_of(std::uint64_t a) const {
    if (on_device(a)) return 0;
    auto at = allocations.upper_bound(a);
    if (at == allocations.begin()) return -1;
    --at;
    return a - at->first < at->second.bytes ? at->second.gpu : -1;
  }
  void pause(bool on) {
    std::lock_guard lock(mutex);
    paused = on;
    changed.notify_all();
  }
  void hold(bool on) {
    std::lock_guard lock(mutex);
    hold_landing = on;
    changed.notify_all();
  }
  bool run_one() {
    if (paused || streams.empty()) return false;
    // Any stream may be the next.
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    auto s = std::next(streams.begin(), static_cast<long>((seed >> 33) % streams.size()));
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (!(*s)->work.empty() && (*s)->work.front()()) {
        (*s)->work.pop_front();
        return true;
      }
      if (++s == streams.end()) s = streams.begin();
    }
    return false;
  }
  void run() {
    std::unique_lock lock(mutex);
    while (!quit)
      if (!run_one()) changed.wait(lock);
  }
  std::uint64_t seed = 1;
};
inline FakeGpu* fake = nullptr;
inline thread_local std::vector<int> current;  // contexts of a thread, by their GPUs

inline void* pointer(std::uint64_t a) { return reinterpret_cast<void*>(a); }

inline int enqueue(cuda::Stream stream, Operation f) {
  if (fake->dead) return 719;  // launch failed: the context is lost
  static_cast<FakeStream*>(stream)->work.push_back(std::move(f));
  fake->changed.notify_all();
  return 0;
}
inline int copy_one(cuda::Address to, cuda::Address from, std::size_t n, cuda::Stream s,
                    bool row = false) {
  if (to == fake->bad_address || from == fake->bad_source) return 1;
  const int source = fake->gpu_of(from), target = fake->gpu_of(to);
  ++fake->copies;
  // As measured on H200, see lane.h.
  constexpr std::size_t kLinearByCompute = 28 << 10;
  static_cast<FakeStream*>(s)->on_copy_engine =
      row || source >= 0 || target < 0 || n >= kLinearByCompute;
  if (source >= 0 && source == target) ++fake->same_gpu_copies;
  if (source == 1 || target == 1) ++fake->through_peer;
  return enqueue(s, [=] {
    if (fake->hold_landing && fake->on_device(to)) return false;
    if (fake->on_device(from)) fake->ran_out += n;
    std::memcpy(pointer(to), pointer(from), n);
    return true;
  });
}
template <class Word = std::uint64_t>
int write_one(cuda::Stream s, cuda::Address to, std::uint64_t value) {
  if (fake->written.size() < 4096) fake->written.push_back(to);
  if (to == fake->bad_address || to % sizeof(Word) != 0) return 1;
  return enqueue(s, [=] {
    std::atomic_ref(*static_cast<Word*>(pointer(to)))
        .store(static_cast<Word>(value), std::memory_order_release);
    return true;
  });
}

inline void note_values(cuda::Stream s) {
  if (!static_cast<FakeStream*>(s)->on_copy_engine) ++fake->bare_values;
}

inline cuda::Driver fake_table() {
  cuda::Driver d;
  d.get_error_name = [](int, const char** name) { return *name = "FAKE_ERROR", 0; };
  d.device_count = [](int* n) { return *n = 2, 0; };
  d.primary_retain = [](cuda::Context* c, int gpu) {
    std::lock_guard lock(fake->mutex);
    ++fake->retained[gpu];
    return *c = &fake->contexts[gpu], 0;
  };
  d.primary_release = [](int gpu) {
    std::lock_guard lock(fake->mutex);
    return --fake->retained[gpu], 0;
  };
  d.primary_state = [](int gpu, unsigned*, int* active) {
    return *active = fake->in_use[gpu] ? 1 : 0, 0;
  };
  d.ctx_set = [](cuda::Context c) {
    current.clear();
    if (c != nullptr) current.push_back(static_cast<FakeContext*>(c)->gpu);
    return 0;
  };
  d.ctx_push = [](cuda::Context c) {
    return current.push_back(static_cast<FakeContext*>(c)->gpu), 0;
  };
  d.ctx_pop = [](cuda::Context*) { return current.pop_back(), 0; };
  d.can_access_peer = [](int* yes, int, int) { return *yes = fake->peers ? 1 : 0, 0; };
  d.ctx_enable_peer = [](cuda::Context c, unsigned) {
    if (static_cast<FakeContext*>(c)->gpu == current.back()) return 101;
    return fake->peer_result;
  };
  d.mem_alloc = [](cuda::Address* p, std::size_t n) {
    std::lock_guard lock(fake->mutex);
    ++fake->alloc_calls;
    if (fake->alloc_result != 0) return fake->alloc_result;
    *p = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(4096, (n + 4095) / 4096 * 4096));
    fake->allocations[*p] = {current.back(), n};
    return 0;
  };
  d.mem_free = [](cuda::Address p) {
    std::lock_guard lock(fake->mutex);
    if (fake->allocations.erase(p) != 1) return 1;
    return std::free(pointer(p)), 0;
  };
  d.exchange_capture_mode = [](int*) { return 0; };
  d.host_alloc = [](void** p, std::size_t n, unsigned) {
    std::this_thread::sleep_for(std::chrono::milliseconds(fake->host_alloc_ms));
    while (fake->host_alloc_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::lock_guard lock(fake->mutex);
    ++fake->host_allocs;
    *p = std::aligned_alloc(4096, n);
    return *p == nullptr ? 2 : 0;
  };
  d.host_free = [](void* p) { return std::free(p), 0; };
  d.stream_create = [](cuda::Stream* s, unsigned) {
    std::lock_guard lock(fake->mutex);
    auto* made = new FakeStream;
    fake->streams.insert(made);
    *s = made;
    return 0;
  };
  d.stream_destroy = [](cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    fake->streams.erase(static_cast<FakeStream*>(s));
    delete static_cast<FakeStream*>(s);
    return 0;
  };
  d.stream_query = [](cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    if (fake->dead) return 719;
    return static_cast<FakeStream*>(s)->work.empty() ? 0 : cuda::kNotReady;
  };
  d.copy_async = [](cuda::Address to, cuda::Address from, std::size_t n, cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    return copy_one(to, from, n, s);
  };
  d.copy_batch_async = [](cuda::Address* to, cuda::Address* from, std::size_t* n, std::size_t count,
                          cuda::CopyAttributes* a, std::size_t* first, std::size_t attributes,
                          std::size_t*, cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    if (attributes != 1 || *first != 0 || a->source_order != cuda::kSourceOrderStream) return 1;
    if (fake->batch_refused) return 801;
    for (std::size_t i = 0; i < count; ++i)
      if (to[i] == fake->bad_address) return 1;
    fake->batch_sizes.push_back(count);
    // Backwards: copies of one batch have no order.
    for (std::size_t i = count; i-- > 0;)
      if (int r = copy_one(to[i], from[i], n[i], s); r != 0) return r;
    return 0;
  };
  d.copy_rows_async = [](const cuda::Rows* r, cuda::Stream s) {
    std::lock_guard lock(fake->mutex);
    if (r->from.pitch != r->width || r->to.pitch != r->width || r->height < 2) return 1;
    fake->rows += r->height;
    fake->row_copies += 1;
    const std::uint64_t from = reinterpret_cast<std::uintptr_t>(r->from.host);
    for (std::size_t i = 0; i < r->height; ++i)
      if (int e = copy_one(r->to.device + i * r->width, from + i * r->width, r->width, s, true);
          e != 0)
        return e;
    return 0;
  };
  d.device_uuid = [](void* out, int gpu) {
    std::memset(out, 'A' + gpu, 16);
    return 0;
  };
  d.host_register = [](void*, std::size_t, unsigned) {
    std::lock_guard lock(fake->mutex);
    if (fake->register_result == 0) ++fake->registered;
    return fake->register_result;
  };
  d.host_unregister = [](void*) {
    std::lock_guard lock(fake->mutex);
    return --fake->registered, 0;
  };
  d.handle_retain = [](cuda::Handle*, void*) { return 1; };
  d.granularity = [](std::size_t* unit, const cuda::AllocationProperties*, int) {
    return *unit = 4096, 0;
  };
  d.handle_create = [](cuda::Handle* handle, std::size_t, const cuda::AllocationProperties* p,
                       unsigned long long) {
    std::lock_guard lock(fake->mutex);
    fake->mapped_on = p->location.id;
    return *handle = 1, fake->peers ? 0 : 1;
  };
  d.handle_release = [](cuda::Handle) { return 0; };
  d.address_reserve = [](cuda::Address* p, std::size_t n, std::size_t, cuda::Address,
                         unsigned long long) {
    std::lock_guard lock(fake->mutex);
    *p = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(4096, n));
    fake->allocations[*p] = {fake->mapped_on, n};
    return 0;
  };
  d.address_free = [](cuda::Address p, std::size_t) {
    std::lock_guard lock(fake->mutex);
    if (fake->allocations.erase(p) != 1) return 1;
    return std::free(pointer(p)), 0;
  };
  d.map = [](cuda::Address, std::size_t, std::size_t, cuda::Handle, unsigned long long) {
    return 0;
  };
  d.unmap = [](cuda::Address, std::size_t) { return 0; };
  d.set_access = [](cuda::Address, std::size_t, const cuda::AccessDescription*, std::size_t) {
    return 0;
  };
  d.ipc_get = [](cuda::IpcHandle* handle, cuda::Address address) {
    std::memcpy(handle->bytes, &address, sizeof address);
    return 0;
  };
  d.ipc_open = [](cuda::Address* out, cuda::IpcHandle handle, unsigned) {
    std::lock_guard lock(fake->mutex);
    std::uint64_t name = 0;
    std::memcpy(&name, handle.bytes, sizeof name);
    const auto at = fake->names_elsewhere.find(name);
    if (at == fake->names_elsewhere.end()) return 1;
    ++fake->opened;
    return *out = at->second, 0;
  };
  d.ipc_close = [](cuda::Address) {
    std::lock_guard lock(fake->mutex);
    return --fake->opened, 0;
  };
  d.write_value64 = [](cuda::Stream s, cuda::Address to, std::uint64_t value, unsigned) {
    std::lock_guard lock(fake->mutex);
    note_values(s);
    return write_one(s, to, value);
  };
  d.batch_mem_op = [](cuda::Stream s, unsigned count, cuda::MemOp* ops, unsigned) {
    std::lock_guard lock(fake->mutex);
    ++fake->mem_op_calls;
    note_values(s);
    if (count > 255) return 1;
    for (unsigned i = 0; i < count; ++i)
      if ((ops[i].operation != cuda::kOpWriteValue64 &&
           ops[i].operation != cuda::kOpWriteValue32) ||
          ops[i].address == fake->bad_address)
        return 1;
    for (unsigned i = 0; i < count; ++i) {
      const bool half = ops[i].operation == cuda::kOpWriteValue32;
      auto* const write = half ? write_one<std::uint32_t> : write_one<std::uint64_t>;
      if (int r = write(s, ops[i].address, ops[i].value); r != 0) return r;
    }
    return 0;
  };
  return d;
}

struct Job : CopyJob {
  std::atomic<bool> finished{false};
  Status status = Status::again;
  std::size_t index = 0;
  std::vector<std::size_t>* log = nullptr;
};

// The fake in the driver's place, with 8 MiB or more on "GPU 0" and as much on the host.
class Machine {
 public:
  explicit Machine(std::size_t bytes = kBytes)
      : table_(fake_table()), device_(bytes / 8), host_(bytes / 8) {
    gpu_.device_low = device();
    gpu_.device_high = device() + bytes;
    fake = &gpu_;
    gpu_.thread = std::thread([this] { gpu_.run(); });
    cuda::set_driver_for_test(&table_);
  }
  ~Machine() {
    gpu_.pause(false);
    stop_copy_threads();
    cuda::set_driver_for_test(nullptr);
    {
      std::lock_guard lock(gpu_.mutex);
      gpu_.quit = true;
      gpu_.changed.notify_all();
    }
    gpu_.thread.join();
  }
  static constexpr std::size_t kBytes = 8 << 20;
  std::uint64_t device() { return reinterpret_cast<std::uint64_t>(device_.data()); }
  std::uint64_t host() { return reinterpret_cast<std::uint64_t>(host_.data()); }
  std::vector<std::uint64_t>& device_words() { return device_; }
  std::vector<std::uint64_t>& host_words() { return host_; }
  FakeGpu& gpu() { return gpu_; }
  // Until `holds`, asked under the GPU's lock, is true (10 s at most), and a moment more.
  template <class Holds>
  void settle_when(Holds holds) {
    const auto there = [&] {
      const std::lock_guard lock(gpu_.mutex);
      return holds();
    };
    for (int i = 0; i < 10000 && !there(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    settle();
  }
  // Until the GPU has been given that many copies.
  void given(std::size_t copies) {
    settle_when([&] { return gpu_.copies >= copies; });
  }
  // Waits until the copy thread stands still: nothing more is in its inbox or being issued.
  static void settle() { test::let_others_run(20); }

 private:
  cuda::Driver table_;
  FakeGpu gpu_;
  std::vector<std::uint64_t> device_, host_;
};

inline void fill(Job& job, CopyEnd to, CopyEnd from, std::uint64_t bytes, std::uint64_t order = 1) {
  job.to = to;
  job.from = from;
  job.bytes = bytes;
  job.order = order;
  job.done = [](CopyJob* base, Status status) {
    auto* j = static_cast<Job*>(base);
    j->status = status;
    if (j->log != nullptr) j->log->push_back(j->index);
    j->finished.store(true, std::memory_order_release);
    j->finished.notify_all();
  };
}
inline Status wait(Job& job) {
  job.finished.wait(false, std::memory_order_acquire);
  return job.status;
}
inline Status move(CopyEnd to, CopyEnd from, std::uint64_t bytes) {
  Job job;
  fill(job, to, from, bytes);
  const Status s = submit_copy(&job);
  return s == Status::ok ? wait(job) : s;
}

}  // namespace twinpath::gpu::test_copies
