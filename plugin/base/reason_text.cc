#include "plugin/base/reason_text.h"

#include <array>
#include <cstring>

namespace twinpath {

std::string reason_text(int error) {
  if (error <= 0) return "the provider gave no reason";
  std::array<char, 128> buffer{};
  return std::string(strerror_r(error, buffer.data(), buffer.size())) + " (errno " +
         std::to_string(error) + ")";
}

}  // namespace twinpath
