#pragma once
// The two calls that carry many things at once to a stream: copies, and values that it writes.
// What a driver refuses as a whole goes one by one, so that only what is bad of it fails.
//
// Threads: the copy thread only.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/gpu/copy_plan.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/job_list.h"

namespace twinpath::gpu {

// A tiny job's words: one of 4 bytes, or up to four of 8.
inline bool is_half_word(const CopyJob& job) { return job.bytes == sizeof(std::uint32_t); }
inline std::size_t tiny_words(const CopyJob& job) { return is_half_word(job) ? 1 : job.bytes / 8; }
// The source may be a line that a GPU or another thread fills: one load each.
std::uint64_t tiny_word(const CopyJob& job, std::size_t i);

// Values that a stream writes in their order, and whose they are.
class ValueCall {
 public:
  ValueCall();  // all the memory that it takes

  void clear();
  bool empty() const { return values_.empty(); }
  std::size_t size() const { return values_.size(); }
  // The words of the tiny job that is number `index` of its batch.  False: there is no room.
  bool add(const CopyJob& job, std::size_t index);
  // Whether there are values of its order, or of one that shares a bit with it.
  bool has_order_of(const CopyJob& job) const { return (orders_ & order_bit(job)) != 0; }

  // Gives all of them to the stream, and behind them `value` for the word at `word`, which is what
  // the result is about.  `refused(index, address, result)`: of each that was refused.
  template <class Refused>
  cuda::Result submit(const cuda::Driver& d, cuda::Stream stream, cuda::Address word,
                      std::uint64_t value, Refused&& refused) {
    if (!empty()) {
      if (submit_together(d, stream, word, value)) return cuda::kSuccess;
      for (std::size_t i = 0; i < values_.size(); ++i)
        if (const cuda::Result r = d.batch_mem_op(stream, 1, &values_[i], 0); r != cuda::kSuccess)
          refused(job_[i], values_[i].address, r);
    }
    return d.write_value64(stream, word, value, 0);
  }

 private:
  static std::uint64_t order_bit(const CopyJob& job) {
    return std::uint64_t{1} << order_slot(job, 6);
  }
  bool submit_together(const cuda::Driver& d, cuda::Stream stream, cuda::Address word,
                       std::uint64_t value);

  std::vector<cuda::MemOp> values_;
  std::vector<std::size_t> job_;  // of each value, its index in the batch
  std::uint64_t orders_ = 0;      // a bit for each order, or some, that has values here
};

// Copies that may land in any order.
class CopyCall {
 public:
  explicit CopyCall(std::size_t most);

  // Whether the driver has the call, and takes what it takes one by one.
  bool usable(const cuda::Driver& d) const { return d.copy_batch_async != nullptr && !distrusted_; }
  void clear();
  void add(cuda::Address to, cuda::Address from, std::uint64_t bytes);
  cuda::Result submit(const cuda::Driver& d, cuda::Stream stream);
  // It refused what then went well one by one: it is not tried again.
  void distrust() { distrusted_ = true; }

 private:
  std::vector<cuda::Address> to_, from_;
  std::vector<std::size_t> sizes_;
  bool distrusted_ = false;
};

}  // namespace twinpath::gpu
