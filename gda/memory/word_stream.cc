// See word_stream.h.
#include "gda/memory/word_stream.h"

#include <sched.h>

#include <atomic>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

namespace cuda = gpu::cuda;

namespace {

constexpr int kHighest = -1000;  // the driver takes the nearest that there is

// The context current on this thread for a scope; held by the owner, so cheaper than
// cuda::ScopedContext, which takes a reference each time.
class Current {
 public:
  Current(const cuda::Driver& d, cuda::Context context) : d_(d), result_(d.ctx_push(context)) {
    if (result_ == cuda::kSuccess) (void)d_.exchange_capture_mode(&mode_);
  }
  ~Current() {
    if (result_ != cuda::kSuccess) return;
    (void)d_.exchange_capture_mode(&mode_);
    cuda::Context popped = nullptr;
    (void)d_.ctx_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  cuda::Result result() const { return result_; }

 private:
  const cuda::Driver& d_;
  const cuda::Result result_;
  int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace

Result<std::unique_ptr<WordStream>> WordStream::make(int gpu) {
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr) return Status::unsupported;
  std::unique_ptr<WordStream> made(new WordStream(*d, gpu));
  auto word = DeviceBlock::make(gpu, Place::shared, sizeof(std::uint64_t));
  if (!word) return word.status();
  made->word_ = std::move(word).take();
  if (!made->refuse(d->primary_retain(&made->context_, gpu), "cuDevicePrimaryCtxRetain")) {
    made->context_ = nullptr;
    return Status::system;
  }
  const Current scope(*d, made->context_);
  if (!made->refuse(scope.result(), "cuCtxPushCurrent")) return Status::system;
  const cuda::Result r =
      d->stream_create_with_priority != nullptr
          ? d->stream_create_with_priority(&made->stream_, cuda::kStreamNonBlocking, kHighest)
          : d->stream_create(&made->stream_, cuda::kStreamNonBlocking);
  if (!made->refuse(r, "cuStreamCreateWithPriority")) {
    made->stream_ = nullptr;
    return Status::system;
  }
  return made;
}

WordStream::~WordStream() {
  if (context_ == nullptr) return;
  {
    const Current scope(d_, context_);
    if (scope.result() == cuda::kSuccess && stream_ != nullptr) (void)d_.stream_destroy(stream_);
  }
  (void)d_.primary_release(gpu_);
}

// Says so once, and that it is over; true when `r` is no failure.
bool WordStream::refuse(cuda::Result r, const char* call) {
  if (r == cuda::kSuccess) return true;
  if (!dead_)
    TP_WARN("GPU %d: %s failed (%s): completions no longer reach its kernels; see dmesg", gpu_,
            call, error_name(d_, r).c_str());
  dead_ = true;
  return false;
}

bool WordStream::arrived(std::uint64_t sequence) const {
  // Partner: the write-value at the end of the batch.
  auto& word = *reinterpret_cast<std::uint64_t*>(word_->host());
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire) >= sequence;
}

std::size_t WordStream::room() const {
  if (dead_) return 0;
  if (submitted_ >= kBatches && !arrived(submitted_ - kBatches + 1)) return 0;
  return kBatch - count_;
}

void WordStream::add(std::uint64_t address, std::uint64_t value) {
  cuda::MemOp& op = ops_[count_++];
  op = {};
  op.operation = cuda::kOpWriteValue64;
  op.address = address;
  op.value = value;
}

void WordStream::submit() {
  if (count_ == 0 || dead_) return;
  cuda::MemOp& last = ops_[count_++];
  last = {};
  last.operation = cuda::kOpWriteValue64;
  last.address = word_->device_address();
  last.value = submitted_ + 1;
  const Current scope(d_, context_);
  if (!refuse(scope.result(), "cuCtxPushCurrent")) return;
  if (!refuse(d_.batch_mem_op(stream_, static_cast<unsigned>(count_), ops_.data(), 0),
              "cuStreamBatchMemOp"))
    return;
  ++submitted_;
  count_ = 0;
}

void WordStream::check() {
  if (dead_ || arrived(submitted_)) return;
  const Current scope(d_, context_);
  if (!refuse(scope.result(), "cuCtxPushCurrent")) return;
  const cuda::Result r = d_.stream_query(stream_);
  if (r != cuda::kNotReady) (void)refuse(r, "cuStreamQuery");
}

bool WordStream::wait(std::int64_t limit_ns) const {
  const std::int64_t deadline = now_ns() + limit_ns;
  while (!arrived(submitted_)) {
    if (dead_ || now_ns() > deadline) return false;
    sched_yield();
  }
  return true;
}

}  // namespace twinpath::gda
