#include "plugin/gpu/copy_plan.h"

namespace twinpath::gpu {

CopyKind classify(const CopyJob& job) {
  if (job.bytes == 0) return CopyKind::nothing;
  if (job.from.gpu >= 0 && job.from.gpu == job.to.gpu) return CopyKind::staged;
  const std::uint64_t word = job.bytes == 4 ? 4 : 8;
  const bool words = (job.bytes | job.to.address | job.from.address) % word == 0;
  if (job.from.gpu < 0 && job.bytes <= kTinyBytes && words) return CopyKind::tiny;
  return CopyKind::copy;
}

RowPlan plan_rows(std::uint64_t bytes) {
  const std::uint64_t unit = bytes > 8 && bytes % 8 == 0 ? 8 : bytes > 4 && bytes % 4 == 0 ? 4 : 1;
  const std::uint64_t units = bytes / unit;
  const std::uint64_t tail = units % 2 == 0 ? 0 : 3;
  return {(units - tail) * unit, tail * unit};
}

}  // namespace twinpath::gpu
