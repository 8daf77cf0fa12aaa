// The tree: partial sums go up a binary tree to rank 0, the result comes down the same edges.
// Both directions run at once, slice by slice.
#include <algorithm>

#include "tools/coll_perf/cpu_all_reduce.h"

namespace twinpath::coll {
namespace {

class Tree final : public AllReduce {
 public:
  Tree(const AllReduceJob& job, Links& links, const Regions& regions)
      : job_(job),
        element_(type_info(job.type).bytes),
        links_(links),
        regions_(regions),
        input_(job.in_place ? kOutput : kInput),
        children_(links.send.size() - (job.rank > 0 ? 1 : 0)),
        slice_(slice_elements(job.count * element_, element_)),
        slices_((job.count + slice_ - 1) / slice_) {
    for (Link& link : links_.send) link.restart();
    for (Link& link : links_.recv) link.restart();
  }

  bool progress() override {
    bool moved = false;
    for (Link& link : links_.send) moved = link.poll() || moved;
    for (Link& link : links_.recv) moved = link.poll() || moved;
    moved = reduce_arrived() || moved;
    moved = move_up() || moved;
    moved = move_down() || moved;
    return moved;
  }

  bool finished() const override {
    return results() == slices_ &&
           std::all_of(links_.send.begin(), links_.send.end(),
                       [&](const Link& link) { return link.done() == slices_; });
  }

 private:
  bool is_root() const { return job_.rank == 0; }
  std::size_t at(std::uint64_t k) const { return k * slice_ * element_; }
  std::size_t count(std::uint64_t k) const { return std::min(slice_, job_.count - k * slice_); }
  std::size_t scratch(std::size_t child, std::uint64_t k) const {
    return (child * kDepth + k % kDepth) * kSliceBytes;
  }
  // Slices whose final value is here.
  std::uint64_t results() const { return is_root() ? reduced_ : links_.recv.back().done(); }

  bool reduce_arrived() {
    bool moved = false;
    for (; reduced_ < slices_; ++reduced_) {
      for (std::size_t c = 0; c < children_; ++c) {
        if (links_.recv[c].done() <= reduced_) return moved;
      }
      std::byte* out = regions_[kOutput].data + at(reduced_);
      const std::byte* own = regions_[input_].data + at(reduced_);
      for (std::size_t c = 0; c < children_; ++c) {
        add(job_.type, out, c == 0 ? own : out, regions_[kScratch].data + scratch(c, reduced_),
            count(reduced_));
      }
      moved = true;
    }
    return moved;
  }

  bool move_up() {
    bool moved = false;
    for (std::size_t c = 0; c < children_; ++c) {
      Link& from = links_.recv[c];
      while (from.posted() < slices_ && from.posted() - reduced_ < kDepth &&
             from.post(kScratch, scratch(c, from.posted()), count(from.posted()) * element_)) {
        moved = true;
      }
    }
    if (is_root()) return moved;
    Link& to = links_.send.back();
    // A leaf has nothing to add and sends its input.
    const RegionId source = children_ == 0 ? input_ : kOutput;
    while (to.posted() < reduced_ &&
           to.post(source, at(to.posted()), count(to.posted()) * element_)) {
      moved = true;
    }
    return moved;
  }

  bool move_down() {
    bool moved = false;
    if (!is_root()) {
      Link& from = links_.recv.back();
      // The result lands where the partial sum was sent from: that must have left.
      while (from.posted() < links_.send.back().done() &&
             from.post(kOutput, at(from.posted()), count(from.posted()) * element_)) {
        moved = true;
      }
    }
    for (std::size_t c = 0; c < children_; ++c) {
      Link& to = links_.send[c];
      while (to.posted() < results() &&
             to.post(kOutput, at(to.posted()), count(to.posted()) * element_)) {
        moved = true;
      }
    }
    return moved;
  }

  const AllReduceJob job_;
  const std::size_t element_;
  Links& links_;
  const Regions& regions_;
  const RegionId input_;
  const std::size_t children_;  // their links come first, the parent's last
  const std::size_t slice_;     // elements
  const std::uint64_t slices_;
  std::uint64_t reduced_ = 0;
};

}  // namespace

std::unique_ptr<AllReduce> start_tree(const AllReduceJob& job, Links& links,
                                      const Regions& regions) {
  return std::make_unique<Tree>(job, links, regions);
}

}  // namespace twinpath::coll
