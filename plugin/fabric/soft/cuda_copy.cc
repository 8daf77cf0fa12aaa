// submit_copy and the set of copy threads.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/cuda_copy_thread.h"

namespace twinpath::soft {
namespace {

constexpr int kMaxGpus = 64;

// Process-wide because GPUs and their contexts are.  The destructor runs when the plugin is
// unloaded or the process ends: no thread of ours may outlive our code.
class CopyThreads {
 public:
  ~CopyThreads() {
    for (int gpu = 0; gpu < kMaxGpus; ++gpu)
      if (CopyThread* t = at(gpu)) t->leave();
  }
  // Null when that thread was never started.
  CopyThread* at(int gpu) {
    return gpu >= 0 && gpu < kMaxGpus ? seen_[index(gpu)].load(std::memory_order_acquire) : nullptr;
  }
  CopyThread& start(int gpu) {
    std::lock_guard lock(mutex_);
    auto& thread = threads_[index(gpu)];
    if (!thread) {
      thread = std::make_unique<CopyThread>(gpu);
      seen_[index(gpu)].store(thread.get(), std::memory_order_release);
    }
    thread->start();
    return *thread;
  }
  void stop() {
    for (int gpu = 0; gpu < kMaxGpus; ++gpu)
      if (CopyThread* t = at(gpu)) t->stop();
  }

 private:
  static std::size_t index(int gpu) { return static_cast<std::size_t>(gpu); }
  std::mutex mutex_;
  std::array<std::unique_ptr<CopyThread>, kMaxGpus> threads_;
  std::array<std::atomic<CopyThread*>, kMaxGpus> seen_{};
};

CopyThreads& threads() {
  static CopyThreads t;
  return t;
}

bool visible(int gpu) { return gpu >= 0 && gpu < kMaxGpus; }

// The GPU that issues the copy.  Push, so the source's, unless this process does not use that
// one (a READ from another process' GPU) but does use the other.
int executor_of(const CopyJob& job) {
  if (!visible(job.from.gpu)) return job.to.gpu;
  if (!visible(job.to.gpu) || job.to.gpu == job.from.gpu) return job.from.gpu;
  if (threads().at(job.from.gpu) != nullptr) return job.from.gpu;
  const cuda::Driver* d = cuda::driver();
  return d == nullptr || in_use(*d, job.from.gpu) ? job.from.gpu : job.to.gpu;
}

}  // namespace

Status submit_copy(CopyJob* job) {
  if (job == nullptr || job->done == nullptr) return Status::bad_argument;
  const int gpu = executor_of(*job);
  if (!visible(gpu)) return Status::bad_argument;
  CopyThread* thread = threads().at(gpu);
  if (thread == nullptr || !thread->running()) {
    if (cuda::driver() == nullptr) return Status::unsupported;
    thread = &threads().start(gpu);
  }
  thread->submit(job);
  return Status::ok;
}

void prepare_copies(int gpu) {
  if (visible(gpu) && cuda::driver() != nullptr) (void)threads().start(gpu);
}

void stop_copy_threads() { threads().stop(); }

CopyStatistics copy_statistics() {
  CopyStatistics sum;
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    const CopyThread* t = threads().at(gpu);
    if (t == nullptr) continue;
    const CopyStatistics s = t->counts();
    sum.jobs += s.jobs;
    sum.bytes += s.bytes;
    sum.batches += s.batches;
    sum.write_values += s.write_values;
    sum.staged += s.staged;
  }
  return sum;
}

}  // namespace twinpath::soft
