#include "gda/adapter/mlx5/error_look.h"

#include <algorithm>
#include <cstring>

#include "gda/abi/cqe.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda::mlx5 {

Syndrome first_error(std::span<const std::uint8_t> entries) {
  bool flushed = false;
  for (std::size_t at = 0; at + kCqeBytes <= entries.size(); at += kCqeBytes) {
    std::uint32_t last = 0;
    std::memcpy(&last, entries.data() + at + kCqeBytes - sizeof last, sizeof last);
    if (cqe_opcode(last) != CqeOpcode::error) continue;
    const auto syndrome = static_cast<Syndrome>(entries[at + 55]);
    if (syndrome != Syndrome::flushed) return syndrome;
    flushed = true;
  }
  return flushed ? Syndrome::flushed : Syndrome::none;
}

const char* text_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::retry_exceeded:
    case Syndrome::rnr_exceeded:
      return "the peer does not answer; see its host, and the network between";
    case Syndrome::local_length:
    case Syndrome::local_protection:
    case Syndrome::local_qp_operation:
      return "a kernel wrote a work request that is not allowed here (window, offset, length)";
    case Syndrome::remote_access:
    case Syndrome::remote_invalid_request:
    case Syndrome::remote_operation:
      return "a kernel wrote a work request that is not allowed at the peer (window, offset, "
             "signal)";
    default:
      return "either the peer does not answer, or its end of the queue was refused or closed, "
             "which "
             "its log says: kernels went on, and the first error is not known any more";
  }
}

void ErrorLook::begin(std::size_t queue) {
  auto copy = std::make_unique<Copy>();
  const BlockPlan& plan = queues_.memory().plan();
  copy->queue = queue;
  copy->entries.resize(plan.cq_used());
  if (const std::uint8_t* const host = queues_.memory().host(plan.cq(queue)); host != nullptr) {
    std::memcpy(copy->entries.data(), host, copy->entries.size());
    copy->ended.store(true, std::memory_order_relaxed);
  } else {
    copy->from = {queues_.memory().address(plan.cq(queue)), gpu_};
    copy->to = {reinterpret_cast<std::uintptr_t>(copy->entries.data()), -1};
    copy->bytes = copy->entries.size();
    copy->executor = gpu_;
    copy->done = [](gpu::CopyJob* job, Status status) {
      auto* const self = static_cast<Copy*>(job);
      if (status != Status::ok) self->entries.clear();
      self->ended.store(true, std::memory_order_release);
    };
    if (gpu::submit_copy(copy.get()) != Status::ok) {
      copy->entries.clear();
      copy->ended.store(true, std::memory_order_relaxed);
    }
  }
  copies_.push_back(std::move(copy));
}

std::optional<ErrorLook::Cause> ErrorLook::look() {
  for (auto at = copies_.begin(); at != copies_.end(); ++at) {
    if (!(*at)->ended.load(std::memory_order_acquire)) continue;
    const Cause cause{(*at)->queue, first_error((*at)->entries)};
    copies_.erase(at);
    return cause;
  }
  return std::nullopt;
}

bool ErrorLook::wait(std::int64_t limit_ns) const {
  return wait_within(limit_ns, [this] {
    return std::all_of(copies_.begin(), copies_.end(), [](const auto& copy) {
      return copy->ended.load(std::memory_order_acquire);
    });
  });
}

}  // namespace twinpath::gda::mlx5
