// See write_flush.h.
#include "plugin/gpu/write_flush.h"

#include <pthread.h>

#include <thread>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gpu {

std::string lacks_write_flush(int gpu) {
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr) return "no CUDA driver is loaded";
  int options = 0;
  const std::string missing = "its driver has no cuFlushGPUDirectRDMAWrites";
  if (d->flush_writes == nullptr || d->device_attribute == nullptr) return missing;
  if (d->device_attribute(&options, cuda::kFlushWritesOptions, gpu) != cuda::kSuccess ||
      (options & cuda::kFlushByHost) == 0)
    return missing + " for it";
  return {};
}

struct WriteFlush::Shared {
  explicit Shared(int of) : gpu(of) {}
  const int gpu;
  std::atomic<std::uint64_t> asked{0}, done{0};
  std::atomic<bool> failed{false}, stop{false};
};

WriteFlush::WriteFlush(int gpu) : shared_(std::make_shared<Shared>(gpu)) {
  std::thread thread([shared = shared_] { run(*shared); });
  (void)pthread_setname_np(thread.native_handle(), "twinpath-flush");
  thread.detach();
}

WriteFlush::~WriteFlush() {
  shared_->stop.store(true, std::memory_order_relaxed);
  (void)ask();
}

std::uint64_t WriteFlush::ask() {
  const std::uint64_t number = shared_->asked.fetch_add(1, std::memory_order_release) + 1;
  shared_->asked.notify_one();
  return number;
}

std::uint64_t WriteFlush::done() const { return shared_->done.load(std::memory_order_acquire); }

bool WriteFlush::failed() const { return shared_->failed.load(std::memory_order_acquire); }

void WriteFlush::run(Shared& shared) {
  for (;;) {
    const std::uint64_t done = shared.done.load(std::memory_order_relaxed);
    shared.asked.wait(done, std::memory_order_acquire);
    const std::uint64_t asked = shared.asked.load(std::memory_order_acquire);
    if (shared.stop.load(std::memory_order_relaxed)) return;
    const cuda::Driver* const d = cuda::driver();
    if (d == nullptr) return;  // it was there when this was made
    cuda::Result result = cuda::kSuccess;
    {
      const cuda::ScopedContext context(*d, shared.gpu);
      result = context ? d->flush_writes(cuda::kFlushOfCurrentContext, cuda::kFlushToAllDevices)
                       : context.result();
    }
    if (result != cuda::kSuccess) {
      TP_WARN("GPU %d: its driver cannot make visible what adapters wrote: %s", shared.gpu,
              cuda::error_name(*d, result).c_str());
      shared.failed.store(true, std::memory_order_release);
      return;
    }
    shared.done.store(asked, std::memory_order_release);
  }
}

}  // namespace twinpath::gpu
