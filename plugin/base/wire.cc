#include "plugin/base/wire.h"

namespace twinpath {

void Writer::raw(const void* p, std::size_t n) {
  const auto* b = static_cast<const std::uint8_t*>(p);
  bytes_.insert(bytes_.end(), b, b + n);
}

}  // namespace twinpath
