#include "plugin/gpu/process/elsewhere.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gpu::process {
namespace {

struct Choice {
  std::mutex mutex;
  std::unique_ptr<Elsewhere> owned;
  std::atomic<Elsewhere*> now{nullptr};
  // The program ends: no thread of ours may outlive our code.  What is still registered refers to
  // the rest, which the kernel gives back.
  ~Choice() {
    if (owned) owned.release()->leave();
  }
};
Choice& choice() {
  static Choice c;
  return c;
}

// Addresses without memory that stand for `bytes` of another process; 0: none could be had.
std::uint64_t reserve(std::uint64_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : reinterpret_cast<std::uintptr_t>(p);
}

}  // namespace

// Memory that the copy process reaches, until this goes.
class Elsewhere::Allocation final : public ImportedAllocation {
 public:
  Allocation(AddressMap& map, CopyProcess& process, const Mapped& range, int gpu, bool reserved)
      : map_(map), process_(process), range_(range), gpu_(gpu), reserved_(reserved) {
    map_.add(range_);
  }
  ~Allocation() override {
    map_.remove(range_.id);
    process_.forget(range_.id);
    if (reserved_) (void)::munmap(reinterpret_cast<void*>(range_.start), range_.bytes);
  }
  std::uint64_t address() const override { return range_.start; }
  std::uint64_t bytes() const override { return range_.bytes; }
  int gpu() const override { return gpu_; }

 private:
  AddressMap& map_;
  CopyProcess& process_;
  const Mapped range_;
  const int gpu_;
  const bool reserved_;
};

Elsewhere* Elsewhere::chosen() { return choice().now.load(std::memory_order_acquire); }

void Elsewhere::choose(const std::string& executable, HelperCpus cpus) {
  choose(executable.empty() ? nullptr : std::make_unique<Elsewhere>(executable, cpus));
}

void Elsewhere::choose(std::unique_ptr<Elsewhere> made) {
  Choice& c = choice();
  const std::lock_guard lock(c.mutex);
  c.now.store(made.get(), std::memory_order_release);
  c.owned = std::move(made);
}

Elsewhere::Elsewhere(std::unique_ptr<CopyProcess> process)
    : tried_(true), process_(std::move(process)) {
  learn_gpus();
}

void Elsewhere::learn_gpus() {
  const cuda::Driver* d = cuda::driver();
  for (int gpu = 0, n = d != nullptr ? cuda::gpu_count(*d) : 0; gpu < n; ++gpu) {
    gpus_.emplace_back();
    (void)gpu_uuid(gpu, gpus_.back());
  }
}

Elsewhere::~Elsewhere() { stop(); }

void Elsewhere::stop() {
  for (auto& f : forwarders_)
    if (f) f->stop();
  for (auto& s : seen_) s.store(nullptr);
  for (auto& f : forwarders_) f.reset();
}

void Elsewhere::leave() {
  // A forked child has none of these threads.
  if (::getpid() != owner_) {
    for (auto& f : forwarders_) (void)f.release();
    return;
  }
  for (auto& f : forwarders_)
    if (f) f->leave();
}

// mutex_ held.
Status Elsewhere::start(std::string& why) {
  if (!tried_) {
    tried_ = true;
    auto made = CopyProcess::start(executable_, cpus_, why_);
    started_ = made.status();
    if (made) process_ = std::move(made).take();
    learn_gpus();
  }
  if (started_ == Status::ok && process_->ended()) {
    started_ = Status::closed;
    why_ = "it has ended";
  }
  if (started_ != Status::ok) why = "the process that is to copy GPU memory: " + why_;
  return started_;
}

Status Elsewhere::ready(std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    TP_TRY(start(why));
  }
  const cuda::Driver* d = cuda::driver();
  for (int gpu = 0, n = d != nullptr ? cuda::gpu_count(*d) : 0; gpu < n; ++gpu) {
    if (!cuda::in_use(*d, gpu)) continue;
    if (const Status s = open(gpu); s != Status::ok) {
      why = "the process that is to copy GPU memory cannot use GPU " + std::to_string(gpu);
      return s;
    }
  }
  return Status::ok;
}

Status Elsewhere::open(int gpu) {
  if (gpu < 0 || gpu >= kMaxGpus) return Status::bad_argument;
  if (forwarder(gpu) != nullptr) return Status::ok;
  const std::lock_guard lock(mutex_);
  if (forwarder(gpu) != nullptr) return Status::ok;
  std::string why;
  TP_TRY(start(why));
  const auto index = static_cast<std::size_t>(gpu);
  if (index >= gpus_.size()) return Status::bad_argument;
  auto memory = SharedMemory::create("twinpath-copies", kSharedBytes, Writers::both);
  if (!memory) return memory.status();
  auto there = process_->open_gpu(gpus_[index], *memory);
  if (!there) return there.status();
  TP_INFO(net, "GPU %d: a process of its own copies its memory", gpu);
  forwarders_[index] =
      std::make_unique<Forwarder>(gpu, std::move(memory).take(), *process_, map_, cpus_);
  seen_[index].store(forwarders_[index].get(), std::memory_order_release);
  return Status::ok;
}

Forwarder* Elsewhere::forwarder(int gpu) const {
  return gpu >= 0 && gpu < kMaxGpus
             ? seen_[static_cast<std::size_t>(gpu)].load(std::memory_order_acquire)
             : nullptr;
}

// The GPU that issues the copy: the job's own, else one of its ends', else any that is open.
Forwarder* Elsewhere::forwarder_for(const CopyJob& job) const {
  for (const int gpu : {job.executor, job.from.gpu, job.to.gpu})
    if (Forwarder* f = forwarder(gpu); f != nullptr) return f;
  for (const auto& seen : seen_)
    if (Forwarder* f = seen.load(std::memory_order_acquire); f != nullptr) return f;
  return nullptr;
}

Status Elsewhere::submit(CopyJob* job) {
  Forwarder* f = forwarder_for(*job);
  if (f == nullptr) return Status::unsupported;
  f->submit(job);
  return Status::ok;
}

int Elsewhere::own_ordinal(const GpuUuid& uuid) const {
  const auto at = std::find(gpus_.begin(), gpus_.end(), uuid);
  return at != gpus_.end() ? static_cast<int>(at - gpus_.begin()) : kGpuNotVisible;
}

Elsewhere::Imported Elsewhere::import(const ExportedAllocation& exported) {
  {
    const std::lock_guard lock(mutex_);
    std::string why;
    TP_TRY(start(why));
  }
  const std::uint64_t start = reserve(exported.bytes);
  if (start == 0) {
    TP_WARN("no address space for %llu bytes of GPU memory of another process (ulimit -v)",
            static_cast<unsigned long long>(exported.bytes));
    return Status::no_memory;
  }
  const std::uint64_t id = next_id_.fetch_add(1);
  auto there = process_->import(id, exported);
  if (!there) {
    (void)::munmap(reinterpret_cast<void*>(start), exported.bytes);
    return there.status();
  }
  return std::shared_ptr<ImportedAllocation>(std::make_shared<Allocation>(
      map_, *process_, Mapped{start, exported.bytes, there->address, id, there->gpu},
      own_ordinal(exported.gpu), true));
}

// own_mutex_ held.
std::shared_ptr<ImportedAllocation> Elsewhere::known_own(const PointerInfo& info) {
  const auto at = own_.find(info.alloc_base);
  if (at == own_.end()) return nullptr;
  auto known = at->second.lock();
  return known != nullptr && known->bytes() == info.alloc_bytes ? known : nullptr;
}

Elsewhere::Imported Elsewhere::import_own(const PointerInfo& info) {
  if (info.kind != MemoryKind::cuda) return Status::bad_argument;
  {
    const std::lock_guard lock(own_mutex_);
    if (auto known = known_own(info); known != nullptr) return known;
  }
  // Opens the GPU, too.  Without a lock: the driver may let it wait.
  auto exported = export_allocation(info);
  if (!exported) return exported.status();
  TP_TRY(open(info.gpu));
  const std::uint64_t id = next_id_.fetch_add(1);
  auto there = process_->import(id, *exported);
  if (!there) return there.status();
  const std::lock_guard lock(own_mutex_);
  if (auto known = known_own(info); known != nullptr) {
    process_->forget(id);
    return known;
  }
  auto made = std::make_shared<Allocation>(
      map_, *process_, Mapped{info.alloc_base, info.alloc_bytes, there->address, id, there->gpu},
      info.gpu, false);
  std::erase_if(own_, [](const auto& entry) { return entry.second.expired(); });
  own_[info.alloc_base] = made;
  return std::shared_ptr<ImportedAllocation>(std::move(made));
}

CopyStatistics Elsewhere::counts() const {
  CopyStatistics sum;
  for (const auto& seen : seen_) {
    const Forwarder* f = seen.load(std::memory_order_acquire);
    if (f == nullptr) continue;
    const CopyStatistics s = f->counts();
    sum.jobs += s.jobs;
    sum.bytes += s.bytes;
  }
  return sum;
}

}  // namespace twinpath::gpu::process
