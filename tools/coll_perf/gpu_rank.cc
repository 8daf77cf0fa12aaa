#include "tools/coll_perf/gpu_rank.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "plugin/base/clock.h"
#include "tools/coll_perf/error.h"

namespace twinpath::coll {

Context::Context(const CudaApi& cuda, int gpu) : cuda_(cuda) {
  const std::string what = strf("GPU %d", gpu);
  cuda_.check(cuda_.device_get(&device_, gpu), what);
  CuContext context = nullptr;
  cuda_.check(cuda_.primary_retain(&context, device_),
              what + ", making its context (is it used exclusively, or its memory full?)");
  cuda_.check(cuda_.ctx_set(context), what);
}

Context::~Context() { (void)cuda_.primary_release(device_); }

Stream::Stream(const CudaApi& cuda) : cuda_(cuda) {
  constexpr unsigned kNonBlocking = 1;
  cuda_.check(cuda_.stream_create(&stream_, kNonBlocking), "making a stream");
}

Event::Event(const CudaApi& cuda) : cuda_(cuda) {
  cuda_.check(cuda_.event_create(&event_, 0), "making an event");
}

DeviceBuffer::DeviceBuffer(const Apis& apis, std::size_t bytes, bool from_nccl)
    : apis_(apis),
      bytes_(bytes),
      from_nccl_(from_nccl && apis.nccl.MemAlloc != nullptr && apis.nccl.MemFree != nullptr) {
  const std::string what = strf("%zu bytes of GPU memory (lower --end)", bytes);
  if (from_nccl_) {
    void* address = nullptr;
    apis_.nccl.check(apis_.nccl.MemAlloc(&address, bytes), nullptr, what);
    address_ = reinterpret_cast<CuDevicePtr>(address);
  } else {
    apis_.cuda.check(apis_.cuda.mem_alloc(&address_, bytes), what);
  }
}

DeviceBuffer::~DeviceBuffer() {
  if (from_nccl_) {
    (void)apis_.nccl.MemFree(reinterpret_cast<void*>(address_));
  } else {
    (void)apis_.cuda.mem_free(address_);
  }
}

PinnedBuffer::PinnedBuffer(const CudaApi& cuda, std::size_t bytes) : cuda_(cuda) {
  cuda_.check(cuda_.host_alloc(&data_, bytes, 0), strf("%zu bytes of pinned memory", bytes));
}

Communicator::Communicator(const NcclApi& nccl, int rank, int size, const NcclUniqueId& id)
    : nccl_(nccl) {
  nccl_.check(nccl_.CommInitRank(&comm_, size, id, rank), nullptr,
              strf("rank %d, ncclCommInitRank", rank));
}

void Communicator::destroy() {
  if (comm_ == nullptr) return;
  const NcclResult result = nccl_.CommDestroy(comm_);
  comm_ = nullptr;
  nccl_.check(result, nullptr, "ncclCommDestroy");
}

void Communicator::abort() {
  if (comm_ == nullptr) return;
  (void)nccl_.CommAbort(comm_);
  comm_ = nullptr;
}

Registration::Registration(const NcclApi& nccl, NcclComm comm, const DeviceBuffer& buffer)
    : nccl_(nccl), comm_(comm) {
  if (nccl.CommRegister == nullptr || nccl.CommDeregister == nullptr)
    throw ToolError(kExitMissing, nccl.file + " has no ncclCommRegister; use NCCL 2.19 or newer");
  nccl.check(
      nccl.CommRegister(comm, reinterpret_cast<void*>(buffer.address()), buffer.bytes(), &handle_),
      comm, "ncclCommRegister");
}

void Registration::end() {
  nccl_.check(nccl_.CommDeregister(comm_, handle_), comm_, "ncclCommDeregister");
}

Waited wait_stream(const Apis& apis, CuStream stream, NcclComm comm, double timeout_s,
                   NcclResult& error) {
  const std::int64_t start = now_ns();
  std::int64_t ask_nccl_at = start + kMillisecond;
  for (;;) {
    const CuResult state = apis.cuda.stream_query(stream);
    if (state == gpu::cuda::kSuccess) return Waited::done;
    if (state != gpu::cuda::kNotReady) apis.cuda.check(state, "waiting for the GPU");
    const std::int64_t now = now_ns();
    if (now >= ask_nccl_at && comm != nullptr) {
      ask_nccl_at = now + kMillisecond;
      error = kNcclSuccess;
      const NcclResult asked = apis.nccl.CommGetAsyncError(comm, &error);
      if (asked != kNcclSuccess) error = asked;
      if (error != kNcclSuccess && error != kNcclInProgress) return Waited::failed;
    }
    if (static_cast<double>(now - start) > timeout_s * 1e9) return Waited::timed_out;
    // Leave the cores to NCCL's and the plugin's threads.
    if (now - start > 2 * kMillisecond) {
      usleep(50);
    } else {
      sched_yield();
    }
  }
}

struct Watchdog::State {
  std::atomic<bool> stop{false};
  std::atomic<const char*> what{"start"};
  std::atomic<int> rank{0};
  std::atomic<std::int64_t> deadline{0};
};

// Later than the waits that end by themselves: their messages say more.
Watchdog::Watchdog(double timeout_s)
    : state_(std::make_shared<State>()),
      limit_ns_(static_cast<std::int64_t>((timeout_s + 20) * 1e9)) {
  state_->deadline = now_ns() + limit_ns_;
  // Detached and owning its state: it must not hold up an exit.
  std::thread([state = state_, timeout_s] {
    while (!state->stop.load(std::memory_order_relaxed)) {
      if (now_ns() > state->deadline.load(std::memory_order_relaxed)) {
        std::fprintf(stderr,
                     "coll_perf: rank %d: no progress for %g s in %s; raise --timeout, or set "
                     "NCCL_DEBUG=INFO to see what it waits for\n",
                     state->rank.load(), timeout_s + 20, state->what.load());
        _exit(kExitFailed);
      }
      usleep(50000);
    }
  }).detach();
}

Watchdog::~Watchdog() { state_->stop.store(true, std::memory_order_relaxed); }

void Watchdog::step(int rank, const char* what) {
  state_->rank.store(rank, std::memory_order_relaxed);
  state_->what.store(what, std::memory_order_relaxed);
  state_->deadline.store(now_ns() + limit_ns_, std::memory_order_relaxed);
}

}  // namespace twinpath::coll
