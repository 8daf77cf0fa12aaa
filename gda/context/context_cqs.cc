// See context_cqs.h.
#include "gda/context/context_cqs.h"

namespace twinpath::gda {

Result<std::unique_ptr<ContextCqs>> ContextCqs::make(int gpu, const ContextShape& shape,
                                                     ContextMemory& memory) {
  std::unique_ptr<ContextCqs> made(new ContextCqs);
  for (std::size_t q = 0; q < shape.queues(); ++q) {
    if (memory.cq(q) != nullptr) {
      made->host_.emplace_back(memory.cq(q), shape.depth);
    } else if (memory.cq_mapping(q) != nullptr) {
      made->mapped_.emplace_back(memory.cq_mapping(q), shape.depth);
    } else {
      made->gpu_.emplace_back(memory.cq_address(q), shape.depth, made->unsent_);
    }
  }
  // Before the engine's first store.
  TP_TRY(memory.fill_cqs());
  if (!made->gpu_.empty()) made->stream_ = std::make_unique<WordStream>(gpu);
  return made;
}

CqeWriter& ContextCqs::at(std::size_t queue) {
  if (stream_ != nullptr) return gpu_[queue];
  if (!mapped_.empty()) return mapped_[queue];
  return host_[queue];
}

bool ContextCqs::send() {
  if (unsent_ == 0 || dead()) return false;
  for (std::size_t i = 0; i < gpu_.size(); ++i) gpu_[(next_ + i) % gpu_.size()].send(*stream_);
  next_ = (next_ + 1) % gpu_.size();
  return true;
}

bool ContextCqs::wait(std::int64_t limit_ns) const {
  return stream_ == nullptr || stream_->wait(limit_ns);
}

}  // namespace twinpath::gda
