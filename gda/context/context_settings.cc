// See context_settings.h.
#include "gda/context/context_settings.h"

#include <algorithm>
#include <bit>

#include "gda/served/front/work_queue.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

constexpr std::uint64_t kMostTableEntries = std::uint64_t{1} << 26;  // 512 MiB of signals

// What a queue holds is a power of two, for kernels count round it by a mask.  More than was asked
// for does no harm: NCCL's own adapter queues round up alike, and NCCL EP asks for 193.
std::uint32_t rounded_depth(int wanted) {
  return std::bit_ceil(std::max(static_cast<std::uint32_t>(wanted), kMinDepth));
}

}  // namespace

ContextShape shape_of(const GinCore& core, const ContextSettings& settings) {
  ContextShape shape;
  shape.layout = settings.layout;
  shape.ranks = core.ranks();
  shape.contexts = settings.contexts;
  shape.depth =
      rounded_depth(settings.queue_depth > 0 ? settings.queue_depth : core.config().gin_depth);
  shape.signals = static_cast<std::uint64_t>(std::max(settings.signals, 0));
  shape.counters = static_cast<std::uint64_t>(std::max(settings.counters, 0));
  return shape;
}

Status check_settings(const ContextSettings& settings, const ContextShape& shape) {
  if (settings.contexts < 1 || settings.rank_stride < 1 || settings.signals < 0 ||
      settings.counters < 0 || shape.pairs() > 0xffff ||
      (shape.signals + shape.counters) * static_cast<std::uint64_t>(shape.contexts) >
          kMostTableEntries ||
      (settings.layout == DeviceLayout::v2_28 && settings.contexts != 1)) {
    TP_WARN("a context of %d signals, %d counters, %d queue sets, stride %d cannot be made",
            settings.signals, settings.counters, settings.contexts, settings.rank_stride);
    return Status::bad_argument;
  }
  if (shape.depth > kMaxDepth) {
    TP_WARN("a queue depth of %d is not possible; a queue holds up to %u work requests",
            settings.queue_depth, kMaxDepth);
    return Status::bad_argument;
  }
  return Status::ok;
}

std::vector<bool> spoken_to(const GinCore& core, const ContextSettings& settings) {
  std::vector<bool> used;
  const int stride = settings.rank_stride;
  for (int r = 0; r < core.ranks(); ++r) used.push_back(r % stride == core.rank() % stride);
  return used;
}

}  // namespace twinpath::gda
