#pragma once
// One rank: its GPU, buffers, communicator, and the rounds of a case.
//
// Threads: a rank belongs to one thread at a time; the watch reads Progress from another.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/gpu/behind/calls.h"
#include "test/gpu/behind/gin_work.h"
#include "test/gpu/behind/gpu.h"
#include "test/gpu/behind/options.h"
#include "tools/coll_perf/nccl_api.h"

namespace twinpath::behind {

// Where a rank is, for whoever has to say what it hangs in.
struct Progress {
  std::atomic<const char*> step{"start"};
  std::atomic<int> round{0};
  std::atomic<int> index{-1};             // of the case; -1: none
  std::atomic<std::int64_t> since_ns{0};  // when the case began
};

// A rank's part of a case.
struct Outcome {
  std::uint64_t wrong = 0;      // elements, of sums and of what the call did
  std::vector<double> call_us;  // what the call took, by round
  std::string skipped;          // why it was not made
};

class Rank {
 public:
  // `largest`: bytes of the largest all-reduce.  The communicator is given by attach().
  Rank(const coll::NcclApi& nccl, int device, int rank, int ranks, std::size_t largest,
       StreamKind stream);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  void use() const;  // makes the GPU current
  coll::NcclComm* comm() { return &comm_; }
  Progress& progress() { return progress_; }
  // From now on the all-reduces are GIN's.  Collective: each rank in a thread or process of its
  // own.
  void use_gin(const gda_perf::NcclApi& nccl);

  // The pieces of a case, in this order; a round is start, reduce, call, finish.
  void begin(int index, const Call& call, std::size_t bytes, bool one_process);
  bool skipped() const { return !outcome_.skipped.empty(); }
  void start(int round);
  void reduce();
  void call();
  void finish();
  Outcome end();
  // Before the first case: every kernel that the rounds use is loaded.
  void warm_up();

 private:
  cudaStream_t stream() const { return stream_ ? stream_->get() : cudaStreamLegacy; }
  std::size_t count() const { return bytes_ / sizeof(float); }

  float* send() const { return gin_ ? gin_->send() : send_->data<float>(); }

  const coll::NcclApi& nccl_;
  int device_, rank_, ranks_;
  std::size_t largest_;
  coll::NcclComm comm_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeviceMemory> send_, sums_;
  std::unique_ptr<PinnedMemory> wrong_;
  std::unique_ptr<GinWork> gin_;  // null: ncclAllReduce
  Progress progress_;
  // Of the case:
  std::size_t bytes_ = 0;
  int round_ = 0;
  const char* name_ = "";
  Action action_;
  Outcome outcome_;
};

}  // namespace twinpath::behind
