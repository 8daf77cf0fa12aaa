#include "plugin/base/host.h"

#include <unistd.h>

#include <fstream>
#include <string_view>

namespace twinpath {
namespace {

// FNV-1a, 64 bits.
std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::uint64_t host_hash() {
  // The name alone only where the kernel has none: containers of one host have names of their own.
  std::string text;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (!std::getline(boot, text) || text.empty()) text = host_name();
  return hash(text);
}

}  // namespace twinpath
