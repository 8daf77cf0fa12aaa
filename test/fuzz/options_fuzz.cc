// Values of environment variables: the first byte picks the option, the rest is its text.
// A refused value says why and leaves the setting; an accepted one prints to an accepted value
// that means the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plugin/base/options.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  if (size == 0) return 0;
  const Option& option = options()[data[0] % options().size()];
  const std::string text(data + 1, data + size);
  Config config;
  const std::string before = option.get(config);
  std::string why;
  if (!option.set(config, text, why)) {
    if (why.empty() || option.get(config) != before) std::abort();
    return 0;
  }
  const std::string printed = option.get(config);
  Config again;
  if (!option.set(again, printed, why) || option.get(again) != printed) std::abort();
  return 0;
}
