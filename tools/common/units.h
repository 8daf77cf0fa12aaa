#pragma once
// Byte counts as people write them: 8, 64k, 1m, 2g (powers of 1024).
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinpath::tools {

// nullopt when `text` is not a number with an optional k, m or g (KiB, MB ... too).
std::optional<std::size_t> parse_bytes(std::string_view text);

// "8,64,4k": false and `why` at the first bad entry.
bool parse_byte_list(std::string_view text, std::vector<std::size_t>& out, std::string& why);

// begin, begin*factor, ... up to and including end; factor >= 2.
std::vector<std::size_t> size_steps(std::size_t begin, std::size_t end, std::size_t factor);

// Exact and short: 8, 64k, 1m, 1000, 3k.
std::string format_bytes(std::size_t bytes);

// Fixed-point text: fixed(3.14159, 2) is "3.14".
std::string fixed(double value, int digits);

}  // namespace twinpath::tools
