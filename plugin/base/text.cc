#include "plugin/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace twinpath {
namespace {

// One character as it is shown, at most four of them.
struct Shown {
  std::array<char, 4> text{};
  std::size_t size = 0;
  std::string_view view() const { return {text.data(), size}; }
};

Shown shown(char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kNamed = "\t\n\r", kNames = "tnr";
  if (const std::size_t at = kNamed.find(c); at != std::string_view::npos)
    return {{'\\', kNames[at]}, 2};
  const auto code = static_cast<std::uint8_t>(c);
  if (code >= 0x20 && code != 0x7f) return {{c}, 1};
  return {{'\\', 'x', kHex[code >> 4], kHex[code & 15]}, 4};
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";  // isspace of the C locale
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool counts_as_set(const char* text) { return text != nullptr && !trimmed(text).empty(); }

std::optional<Digits> leading_digits(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    base = 16;
  } else if (text.starts_with('0')) {
    base = 8;
  }
  Digits out;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out.value, base);
  if (error != std::errc{}) return std::nullopt;
  out.rest = {stop, static_cast<std::size_t>(end - stop)};
  return out;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  text = trimmed(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::optional<Digits> digits = leading_digits(text);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (!digits || !digits->rest.empty() || digits->value > kMost) return std::nullopt;
  const auto value = static_cast<std::int64_t>(digits->value);
  return negative ? -value : value;
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) out += shown(c).view();
  return out;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 48;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += c >= 0x20 && c <= 0x7e ? c : '?';
  return out + (text.size() > kShown ? "...'" : "'");
}

void write_printable(const char* text, std::span<char> out) {
  std::size_t used = 0;
  for (; *text != '\0'; ++text) {
    const Shown next = shown(*text);
    if (used + next.size >= out.size()) break;
    std::copy_n(next.text.data(), next.size, out.data() + used);
    used += next.size;
  }
  out[used] = '\0';
}

}  // namespace twinpath
