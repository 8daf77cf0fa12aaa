#include "topology/read/cpu_mask.h"

#include <algorithm>
#include <charconv>

namespace twinpath {
namespace {

constexpr std::size_t kMostWords = 512;

// "0x0000000f" or nothing.
std::optional<std::uint32_t> parse_word(std::string_view text) {
  if (text.empty()) return 0;
  if (!text.starts_with("0x") || text.size() < 3 || text.size() > 10) return std::nullopt;
  std::uint32_t v = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), v, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return v;
}

}  // namespace

std::optional<CpuMask> CpuMask::parse(std::string_view text) {
  CpuMask out;
  if (text.empty()) return std::nullopt;
  bool first = true;
  for (bool more = true; more; first = false) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    more = comma < text.size();
    if (first && part == "0xf...f") {
      out.rest_ = ~std::uint32_t{0};
    } else {
      const auto v = parse_word(part);
      if (!v || out.words_.size() == kMostWords) return std::nullopt;
      out.words_.push_back(*v);
    }
    text.remove_prefix(more ? comma + 1 : comma);
  }
  std::reverse(out.words_.begin(), out.words_.end());
  return out;
}

bool CpuMask::empty() const {
  return rest_ == 0 &&
         std::all_of(words_.begin(), words_.end(), [](std::uint32_t w) { return w == 0; });
}

bool CpuMask::within(const CpuMask& other) const {
  if ((rest_ & ~other.rest_) != 0) return false;
  for (std::size_t i = 0; i < std::max(words_.size(), other.words_.size()); ++i)
    if ((word(i) & ~other.word(i)) != 0) return false;
  return true;
}

}  // namespace twinpath
