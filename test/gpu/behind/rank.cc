#include "test/gpu/behind/rank.h"

#include "plugin/base/clock.h"
#include "test/gpu/behind/kernels.h"

namespace twinpath::behind {
namespace {

constexpr int kNcclFloat = 7, kNcclSum = 0;

std::unique_ptr<Stream> make_stream(StreamKind kind) {
  if (kind == StreamKind::legacy) return nullptr;
  return std::make_unique<Stream>(kind == StreamKind::blocking ? cudaStreamDefault
                                                               : cudaStreamNonBlocking);
}

}  // namespace

Rank::Rank(const coll::NcclApi& nccl, int device, int rank, int ranks, std::size_t largest,
           StreamKind stream)
    : nccl_(nccl), device_(device), rank_(rank), ranks_(ranks), largest_(largest) {
  use();
  stream_ = make_stream(stream);
  send_ = std::make_unique<DeviceMemory>(largest);
  sums_ = std::make_unique<DeviceMemory>(largest);
  wrong_ = std::make_unique<PinnedMemory>(sizeof(unsigned long long));
}

Rank::~Rank() {
  (void)cudaSetDevice(device_);
  if (comm_ != nullptr) (void)nccl_.CommDestroy(comm_);
}

void Rank::use_gin(const gda_perf::NcclApi& nccl) {
  use();
  gin_ =
      std::make_unique<GinWork>(nccl, reinterpret_cast<ncclComm_t>(comm_), rank_, ranks_, largest_);
}

void Rank::use() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

void Rank::begin(int index, const Call& call, std::size_t bytes, bool one_process) {
  bytes_ = bytes;
  name_ = call.name;
  outcome_ = {};
  progress_.round = 0;
  progress_.step = "preparing";
  progress_.since_ns = now_ns();
  progress_.index = index;
  int gpus = 1;
  check(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  try {
    action_ = call.make(
        {device_, rank_, ranks_, stream(), sums_->data<float>(), bytes, one_process, gpus});
  } catch (const Skipped& why) {
    outcome_.skipped = why.what();
  }
}

void Rank::start(int round) {
  round_ = round;
  progress_.round = round;
  progress_.step = "filling";
  launch_fill(send(), count(), round, rank_, stream());
  check(cudaMemsetAsync(sums_->data(), 0xFF, bytes_, stream()), "cudaMemsetAsync");
  check(cudaGetLastError(), "filling");
}

void Rank::reduce() {
  if (gin_) {
    progress_.step = "an all-reduce by GIN";
    gin_->reduce(sums_->data<float>(), count(), stream());
    return;
  }
  progress_.step = "ncclAllReduce";
  nccl_.check(nccl_.AllReduce(send_->data(), sums_->data(), count(), kNcclFloat, kNcclSum, comm_,
                              reinterpret_cast<coll::CuStream>(stream())),
              comm_, "ncclAllReduce");
}

void Rank::call() {
  progress_.step = name_;
  const std::int64_t begin = now_ns();
  action_.act(round_);
  outcome_.call_us.push_back(static_cast<double>(now_ns() - begin) / 1e3);
}

void Rank::finish() {
  progress_.step = "waiting for the sums";
  auto* wrong = wrong_->data<unsigned long long>();
  *wrong = 0;
  launch_count_wrong(sums_->data<float>(), count(), round_, ranks_, wrong, stream());
  check(cudaGetLastError(), "counting wrong sums");
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  outcome_.wrong += *wrong;
  progress_.step = "looking at what the call did";
  if (action_.wrong) outcome_.wrong += action_.wrong(round_);
}

Outcome Rank::end() {
  progress_.step = "cleaning up";
  action_ = {};
  if (comm_ != nullptr) {
    coll::NcclResult error = coll::kNcclSuccess;
    nccl_.check(nccl_.CommGetAsyncError(comm_, &error), comm_, "ncclCommGetAsyncError");
    nccl_.check(error, comm_, "the communicator");
  }
  progress_.index = -1;
  return std::move(outcome_);
}

void Rank::warm_up() {
  bytes_ = sizeof(float);
  round_ = 0;
  unsigned long long* wrong = wrong_->data<unsigned long long>();
  launch_fill(send_->data<float>(), 1, 0, rank_, stream());
  launch_count_wrong(sums_->data<float>(), 1, 0, ranks_, wrong, stream());
  launch_store(sums_->data<unsigned>(), 0, stream());
  check(cudaGetLastError(), "the first kernels");
  check(cudaStreamSynchronize(stream()), "the first kernels");
}

}  // namespace twinpath::behind
