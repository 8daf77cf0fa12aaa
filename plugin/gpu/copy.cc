// submit_copy and the set of copy threads.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/gpu/copy_thread.h"
#include "plugin/gpu/import.h"
#include "plugin/gpu/process/elsewhere.h"

namespace twinpath::gpu {
namespace {

constexpr int kMaxGpus = 64;

// Process-wide because GPUs and their contexts are.  Never destroyed: at process end threads of
// others may still come with jobs.
class CopyThreads {
 public:
  // Null when that thread was never started.
  CopyThread* at(int gpu) {
    return gpu >= 0 && gpu < kMaxGpus ? seen_[index(gpu)].load(std::memory_order_acquire) : nullptr;
  }
  // Null after leave(), and where the system has no thread to give.
  CopyThread* start(int gpu) {
    std::lock_guard lock(mutex_);
    if (left_) return nullptr;
    auto& thread = threads_[index(gpu)];
    if (!thread) {
      thread = std::make_unique<CopyThread>(gpu);
      seen_[index(gpu)].store(thread.get(), std::memory_order_release);
    }
    try {
      thread->start();
    } catch (const std::system_error& e) {
      TP_WARN("GPU %d: no thread for its copies: %s", gpu, why_no_thread(e.code().value()).c_str());
      return nullptr;
    }
    return thread.get();
  }
  void stop() {
    for (int gpu = 0; gpu < kMaxGpus; ++gpu)
      if (CopyThread* t = at(gpu)) t->stop();
  }
  void leave() {
    std::lock_guard lock(mutex_);
    left_ = true;
    for (const auto& thread : threads_)
      if (thread) thread->leave();
  }

 private:
  static std::size_t index(int gpu) { return static_cast<std::size_t>(gpu); }
  std::mutex mutex_;
  bool left_ = false;
  std::array<std::unique_ptr<CopyThread>, kMaxGpus> threads_;
  std::array<std::atomic<CopyThread*>, kMaxGpus> seen_{};
};

// Its destructor runs when the plugin is unloaded or the process ends: no thread of ours may
// outlive our code.
struct AtEnd {
  explicit AtEnd(CopyThreads& left) : threads(left) {}
  ~AtEnd() { threads.leave(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  CopyThreads& threads;
};

CopyThreads& threads() {
  static auto* const all = new CopyThreads;
  static const AtEnd at_end(*all);
  return *all;
}

bool visible(int gpu) { return gpu >= 0 && gpu < kMaxGpus; }

// A GPU whose context this process owns anyway; -1: none.  Work on any other GPU would make a
// second context there, and two processes' contexts take turns in slices of a millisecond.
int gpu_in_use(int preferred) {
  if (threads().at(preferred) != nullptr) return preferred;
  const cuda::Driver* d = cuda::driver();
  if (d != nullptr && visible(preferred) && in_use(*d, preferred)) return preferred;
  for (int gpu = 0; gpu < kMaxGpus; ++gpu)
    if (threads().at(gpu) != nullptr) return gpu;
  for (int gpu = 0, n = d != nullptr ? gpu_count(*d) : 0; gpu < n; ++gpu)
    if (in_use(*d, gpu)) return gpu;
  return -1;
}

// The GPU that issues the copy: that of the memory that is ours alone (mapped for its own GPU
// only, while imported memory is mapped for all), else one that this process uses.
int executor_of(const CopyJob& job) {
  if (visible(job.executor)) return job.executor;
  if (job.from.gpu < 0 && job.to.gpu < 0) return -1;  // host to host is not ours
  if (!visible(job.from.gpu)) return gpu_in_use(job.to.gpu);
  if (!visible(job.to.gpu) || job.to.gpu == job.from.gpu) return gpu_in_use(job.from.gpu);
  const int pushing = gpu_in_use(job.from.gpu);
  return pushing == job.from.gpu ? pushing : gpu_in_use(job.to.gpu);
}

}  // namespace

Status submit_copy(CopyJob* job) {
  if (job == nullptr || job->done == nullptr) return Status::bad_argument;
  process::Elsewhere* other = process::Elsewhere::chosen();
  return other != nullptr ? other->submit(job) : submit_copy_here(job);
}

Status submit_copy_here(CopyJob* job) {
  if (job == nullptr || job->done == nullptr) return Status::bad_argument;
  const int gpu = executor_of(*job);
  // Without a driver no GPU is visible either; that is not the caller's mistake.
  if (!visible(gpu)) return cuda::driver() == nullptr ? Status::unsupported : Status::bad_argument;
  CopyThread* thread = threads().at(gpu);
  if (thread == nullptr || !thread->running()) {
    if (cuda::driver() == nullptr) return Status::unsupported;
    thread = threads().start(gpu);
    if (thread == nullptr) return Status::system;
  }
  thread->submit(job);
  return Status::ok;
}

void prepare_copies(int gpu, std::int64_t wait_ns) {
  if (!visible(gpu) || cuda::driver() == nullptr) return;
  if (process::Elsewhere* other = process::Elsewhere::chosen(); other != nullptr) {
    (void)other->open(gpu);
    return;
  }
  CopyThread* thread = threads().start(gpu);
  if (thread == nullptr) return;
  if (wait_ns > 0) thread->wait_ready(wait_ns);
  thread->prepare();
}

Result<std::shared_ptr<ImportedAllocation>> import_allocation(ExportedAllocation exported) {
  process::Elsewhere* other = process::Elsewhere::chosen();
  return other != nullptr ? other->import(exported) : import_here(std::move(exported));
}

Result<std::shared_ptr<ImportedAllocation>> import_local(const PointerInfo& info) {
  process::Elsewhere* other = process::Elsewhere::chosen();
  return other != nullptr ? other->import_own(info) : import_local_here(info);
}

bool copied_elsewhere() { return process::Elsewhere::chosen() != nullptr; }

Status copies_ready(std::string& why) {
  process::Elsewhere* other = process::Elsewhere::chosen();
  return other != nullptr ? other->ready(why) : Status::ok;
}

Result<std::shared_ptr<ImportedAllocation>> keep_in_reach(const void* p, std::uint64_t bytes) {
  if (!copied_elsewhere()) return std::shared_ptr<ImportedAllocation>();
  const PointerInfo info = inspect_pointer(p);
  if (info.kind != MemoryKind::cuda) return Status::bad_argument;
  TP_TRY(check_range(info, p, bytes));
  return import_local(info);
}

void copy_elsewhere(const std::string& executable, HelperCpus cpus) {
  process::Elsewhere::choose(executable, cpus);
}

void stop_copy_threads() {
  if (process::Elsewhere* other = process::Elsewhere::chosen(); other != nullptr) other->stop();
  threads().stop();
}

CopyStatistics copy_statistics() {
  if (process::Elsewhere* other = process::Elsewhere::chosen(); other != nullptr)
    return other->counts();
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

}  // namespace twinpath::gpu
