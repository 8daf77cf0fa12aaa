#include "plugin/gpu/process/served_gpu.h"

#include <algorithm>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gpu::process {
namespace {

constexpr std::int64_t kOpenLimit = 60 * kSecond;
constexpr unsigned kRegisterPortable = 1;

}  // namespace

ServedGpu::ServedGpu(int gpu, SharedMemory memory, bool near)
    : gpu_(gpu),
      memory_(std::move(memory)),
      rings_(*memory_.as<Rings>()),
      passage_(memory_.as<std::byte>() + kPassageAt),
      thread_(gpu, this, near) {}

Result<std::unique_ptr<ServedGpu>> ServedGpu::open(int gpu, SharedMemory memory, bool near) {
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr || d->host_register == nullptr) return Status::unsupported;
  std::unique_ptr<ServedGpu> made(new ServedGpu(gpu, std::move(memory), near));
  // The context lasts as long as the thread, which holds it.
  cuda::ScopedContext scope(*d, gpu);
  cuda::Result r = scope.result();
  if (scope) r = d->host_register(made->passage_, kPassageBytes, kRegisterPortable);
  if (r != cuda::kSuccess) {
    TP_WARN(
        "GPU %d: the copy process cannot use it (%s); it needs memory there (some 500 MiB), and a "
        "compute mode that lets two processes in (nvidia-smi -c DEFAULT)",
        gpu, error_name(*d, r).c_str());
    return Status::system;
  }
  made->registered_ = true;
  made->thread_.start();
  made->thread_.wait_ready(kOpenLimit);
  return made;
}

ServedGpu::~ServedGpu() {
  thread_.stop();
  const cuda::Driver* d = cuda::driver();
  if (!registered_ || d == nullptr) return;
  cuda::ScopedContext scope(*d, gpu_);
  if (scope) (void)d->host_unregister(passage_);
}

// The program is trusted no more than a driver trusts its user: its numbers may be wrong.
bool ServedGpu::resolve(std::uint64_t address, int gpu, std::uint64_t bytes, CopyEnd& end) const {
  if (gpu >= 0) {
    end = {address, gpu};
    return true;
  }
  if (address > kPassageBytes || bytes > kPassageBytes - address) return false;
  end = {reinterpret_cast<std::uintptr_t>(passage_) + address, -1};
  return true;
}

bool ServedGpu::fill(Job& job, const Entry& e) {
  job.executor = gpu_;
  job.order = e.order;
  switch (e.kind) {
    case EntryKind::copy:
      job.bytes = e.body[1];
      return resolve(e.to, e.to_gpu, job.bytes, job.to) &&
             resolve(e.body[0], e.from_gpu, job.bytes, job.from);
    case EntryKind::words:
      job.words = e.body;
      job.bytes = std::uint64_t{e.count} * sizeof e.body[0];
      job.from = {reinterpret_cast<std::uintptr_t>(job.words.data()), -1};
      return e.count <= e.body.size() && e.to_gpu >= 0 &&
             resolve(e.to, e.to_gpu, job.bytes, job.to);
    case EntryKind::add:
    case EntryKind::compare:
      job.update = true;
      job.compare = e.kind == EntryKind::compare;
      std::copy_n(e.body.begin(), e.body.size(), job.operand);
      return e.to_gpu >= 0 && resolve(e.to, e.to_gpu, sizeof job.old, job.to);
  }
  return false;
}

CopyJob* ServedGpu::take() {
  while (taken_ != rings_.submitted.load(std::memory_order_acquire)) {
    const Entry entry = rings_.entries[taken_ % kEntries];
    ++taken_;
    if (entry.slot >= kEntries) continue;
    Job& job = jobs_[entry.slot];
    static_cast<WordUpdate&>(job) = WordUpdate{};
    job.owner = this;
    job.slot = entry.slot;
    job.done = job_done;
    if (fill(job, entry)) return &job;
    complete(job, Status::bad_argument);
  }
  return nullptr;
}

void ServedGpu::job_done(CopyJob* base, Status status) {
  const auto& job = *static_cast<Job*>(base);
  job.owner->complete(job, status);
}

void ServedGpu::complete(const Job& job, Status status) {
  rings_.outcomes[completed_ % kEntries] = {job.old, job.slot, static_cast<std::uint32_t>(status)};
  rings_.completed.store(++completed_, std::memory_order_release);
}

void ServedGpu::sleep() {
  // Both this pair and the submitter's (forwarder.cc) are sequentially consistent: either we see
  // the entry before we sleep, or it sees that we sleep.
  rings_.asleep.store(1);
  if (taken_ == rings_.submitted.load() && !woken_.load()) sleep_on(rings_.asleep);
  rings_.asleep.store(0, std::memory_order_relaxed);
  woken_.store(false);
}

void ServedGpu::wake() {
  woken_.store(true);
  wake_up(rings_.asleep);
}

}  // namespace twinpath::gpu::process
