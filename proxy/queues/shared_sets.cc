#include "proxy/queues/shared_sets.h"

#include <cstring>

#include "plugin/base/random.h"

namespace twinpath {

SharedSets::SharedSets() {
  const Nonce nonce = random_nonce();
  std::memcpy(&session_, nonce.data(), sizeof session_);
  session_ |= 1;
}

void SharedSets::keep(std::unique_ptr<RegisteredBuffer> memory) {
  if (memory == nullptr) return;
  const std::lock_guard hold(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace twinpath
