#include "plugin/gpu/batch_calls.h"

#include <atomic>

namespace twinpath::gpu {

using cuda::kSuccess;

std::uint64_t tiny_word(const CopyJob& job, std::size_t i) {
  constexpr auto kOrder = std::memory_order_relaxed;
  if (is_half_word(job))
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(job.from.address)).load(kOrder);
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(job.from.address + 8 * i)).load(kOrder);
}

ValueCall::ValueCall() {
  values_.reserve(cuda::kMaxMemOps);
  job_.reserve(cuda::kMaxMemOps);
}

void ValueCall::clear() {
  values_.clear();
  job_.clear();
  orders_ = 0;
}

bool ValueCall::add(const CopyJob& job, std::size_t index) {
  const std::size_t count = tiny_words(job);
  // One operation is kept for the word behind all.
  if (values_.size() + count + 1 > cuda::kMaxMemOps) return false;
  orders_ |= order_bit(job);
  for (std::size_t i = 0; i < count; ++i) {
    cuda::MemOp op;
    op.operation = is_half_word(job) ? cuda::kOpWriteValue32 : cuda::kOpWriteValue64;
    op.address = job.to.address + 8 * i;
    op.value = tiny_word(job, i);
    values_.push_back(op);
    job_.push_back(index);
  }
  return true;
}

bool ValueCall::submit_together(const cuda::Driver& d, cuda::Stream stream, cuda::Address word,
                                std::uint64_t value) {
  cuda::MemOp last;
  last.operation = cuda::kOpWriteValue64;
  last.address = word;
  last.value = value;
  values_.push_back(last);
  const cuda::Result r =
      d.batch_mem_op(stream, static_cast<unsigned>(values_.size()), values_.data(), 0);
  values_.pop_back();
  return r == kSuccess;
}

CopyCall::CopyCall(std::size_t most) {
  to_.reserve(most);
  from_.reserve(most);
  sizes_.reserve(most);
}

void CopyCall::clear() {
  to_.clear();
  from_.clear();
  sizes_.clear();
}

void CopyCall::add(cuda::Address to, cuda::Address from, std::uint64_t bytes) {
  to_.push_back(to);
  from_.push_back(from);
  sizes_.push_back(bytes);
}

cuda::Result CopyCall::submit(const cuda::Driver& d, cuda::Stream stream) {
  cuda::CopyAttributes attributes;
  attributes.source_order = cuda::kSourceOrderStream;
  attributes.flags = cuda::kPreferOverlap;
  std::size_t first = 0, fail_index = 0;
  return d.copy_batch_async(to_.data(), from_.data(), sizes_.data(), to_.size(), &attributes,
                            &first, 1, &fail_index, stream);
}

}  // namespace twinpath::gpu
