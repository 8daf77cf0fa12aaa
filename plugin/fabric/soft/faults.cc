#include "plugin/fabric/soft/faults.h"

#include <charconv>

namespace twinpath::soft {

bool Faults::set(std::string_view text, std::string& why) {
  std::uint64_t fail = 0, delay = 0;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest = item.size() == rest.size() ? std::string_view{} : rest.substr(item.size() + 1);
    std::size_t equals = item.find('=');
    std::string_view key = item.substr(0, equals);
    std::string_view number = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    std::uint64_t v = 0;
    auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), v);
    bool good = ec == std::errc{} && end == number.data() + number.size() && v > 0 &&
                v < (std::uint64_t{1} << 40);
    if (!good || (key != "fail_send" && key != "delay_us")) {
      why = "'" + std::string(item) + "' is not a fault (fail_send=N, delay_us=T)";
      return false;
    }
    (key == "fail_send" ? fail : delay) = v;
  }
  fail_send_ = fail;
  delay_us_ = static_cast<std::int64_t>(delay);
  any_ = fail != 0 || delay != 0;
  return true;
}

}  // namespace twinpath::soft
