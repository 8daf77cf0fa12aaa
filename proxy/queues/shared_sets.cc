#include "proxy/queues/shared_sets.h"

#include <cstring>

#include "plugin/base/random.h"

namespace twinpath {

SharedSets::SharedSets() {
  const Nonce nonce = random_nonce();
  std::memcpy(&session_, nonce.data(), sizeof session_);
  session_ |= 1;
}

bool SharedSets::failed(std::uint64_t peer, std::uint32_t set) {
  const std::lock_guard hold(mutex_);
  const auto heard = heard_.find({peer, set});
  return heard != heard_.end() && heard->second.pairs != nullptr && !heard->second.pairs->whole();
}

void SharedSets::leave(std::uint32_t set) {
  const std::lock_guard hold(mutex_);
  for (auto& [path, made] : chosen_)
    if (made.set == set) made.pairs = nullptr;
}

void SharedSets::keep(std::unique_ptr<RegisteredBuffer> memory) {
  if (memory == nullptr) return;
  const std::lock_guard hold(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace twinpath
