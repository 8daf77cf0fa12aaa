// The ring.  The data are cut into one chunk per rank; in step s a rank sends chunk (rank - s)
// to the right and receives chunk (rank - s - 1) from the left.  In the first n-1 steps what
// comes in is added to the own data, in the other n-1 it is the result.  Within a step a chunk
// goes in several slices, so that the next step starts while this one is under way.
#include <algorithm>

#include "tools/coll_perf/cpu_all_reduce.h"

namespace twinpath::coll {
namespace {

class Ring final : public AllReduce {
 public:
  Ring(const AllReduceJob& job, Links& links, const Regions& regions)
      : job_(job),
        element_(type_info(job.type).bytes),
        right_(links.send.front()),
        left_(links.recv.front()),
        regions_(regions),
        input_(job.in_place ? kOutput : kInput) {
    next_loop();
  }

  bool progress() override {
    bool moved = send_some();
    moved = right_.poll() || moved;
    moved = post_receives() || moved;
    if (left_.poll()) {
      moved = true;
      reduce_arrived();
    }
    if (right_.done() == transfers_ && reduced_ == transfers_ && !finished()) {
      begin_ += loop_count_;
      next_loop();
      moved = true;
    }
    return moved;
  }

  bool finished() const override { return begin_ == job_.count; }

 private:
  // One loop moves at most eight full slices per chunk.
  void next_loop() {
    const auto ranks = static_cast<std::size_t>(job_.ranks);
    const std::size_t most = kDepth * kSliceBytes / element_ * ranks;
    loop_count_ = std::min(job_.count - begin_, most);
    chunk_ = (loop_count_ + ranks - 1) / ranks;
    slice_ = slice_elements(chunk_ * element_, element_);
    slices_ = std::max<std::size_t>((chunk_ + slice_ - 1) / slice_, 1);
    transfers_ = loop_count_ == 0 ? 0 : 2 * (ranks - 1) * slices_;
    reduced_ = 0;
    right_.restart();
    left_.restart();
  }

  struct Range {
    std::size_t at, count;  // elements of the user's buffer
  };
  // Slice of transfer `i` in the chunk that is `lag` behind the rank's own.
  Range range(std::uint64_t i, std::size_t lag) const {
    const auto ranks = static_cast<std::size_t>(job_.ranks);
    const std::size_t step = i / slices_ + lag;
    const std::size_t chunk = (static_cast<std::size_t>(job_.rank) + 2 * ranks - step) % ranks;
    const std::size_t chunk_end = std::min((chunk + 1) * chunk_, loop_count_);
    const std::size_t from = std::min(chunk * chunk_ + i % slices_ * slice_, chunk_end);
    return {begin_ + from, std::min(slice_, chunk_end - from)};
  }
  bool reduces(std::uint64_t i) const {
    return i / slices_ < static_cast<std::size_t>(job_.ranks) - 1;
  }

  bool send_some() {
    bool moved = false;
    while (right_.posted() < transfers_) {
      const std::uint64_t i = right_.posted();
      const bool first_step = i < slices_;
      if (!first_step && reduced_ <= i - slices_) break;  // not here yet
      const Range r = range(i, 0);
      if (!right_.post(first_step ? input_ : kOutput, r.at * element_, r.count * element_)) break;
      moved = true;
    }
    return moved;
  }

  bool post_receives() {
    bool moved = false;
    while (left_.posted() < transfers_ && left_.posted() - reduced_ < kDepth) {
      const std::uint64_t i = left_.posted();
      const Range r = range(i, 1);
      if (reduces(i)) {
        if (!left_.post(kScratch, i % kDepth * kSliceBytes, r.count * element_)) break;
      } else {
        // The result lands where a partial sum was sent from: that must have left.
        const std::uint64_t sent = i - (static_cast<std::uint64_t>(job_.ranks) - 1) * slices_;
        if (right_.done() <= sent) break;
        if (!left_.post(kOutput, r.at * element_, r.count * element_)) break;
      }
      moved = true;
    }
    return moved;
  }

  void reduce_arrived() {
    for (; reduced_ < left_.done(); ++reduced_) {
      if (!reduces(reduced_)) continue;
      const Range r = range(reduced_, 1);
      add(job_.type, regions_[kOutput].data + r.at * element_,
          regions_[input_].data + r.at * element_,
          regions_[kScratch].data + reduced_ % kDepth * kSliceBytes, r.count);
    }
  }

  const AllReduceJob job_;
  const std::size_t element_;
  Link& right_;
  Link& left_;
  const Regions& regions_;
  const RegionId input_;
  std::size_t begin_ = 0;       // first element of this loop
  std::size_t loop_count_ = 0;  // its elements
  std::size_t chunk_ = 0, slice_ = 0, slices_ = 1;
  std::uint64_t transfers_ = 0;  // in each direction
  std::uint64_t reduced_ = 0;    // received and, where needed, added
};

}  // namespace

std::unique_ptr<AllReduce> start_ring(const AllReduceJob& job, Links& links,
                                      const Regions& regions) {
  return std::make_unique<Ring>(job, links, regions);
}

}  // namespace twinpath::coll
