#include "plugin/base/wire.h"

namespace twinpath {

void Writer::raw(const void* p, std::size_t n) {
  const auto* b = static_cast<const std::uint8_t*>(p);
  bytes_.insert(bytes_.end(), b, b + n);
}

std::string loggable(std::string text, std::size_t most) {
  if (text.size() > most) text.resize(most);
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text;
}

}  // namespace twinpath
