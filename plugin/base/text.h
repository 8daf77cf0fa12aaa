#pragma once
// Text that users give: read as NCCL reads it, and shown so that every character is seen.
//
// Threads: pure functions.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace twinpath {

// Without the blanks around it: files edited on Windows leave a '\r', and nccl.conf keeps blanks.
std::string_view trimmed(std::string_view text);

// Whether an environment variable with this text (null: there is none) counts as set: one that is
// empty does not, as in NCCL, nor does one of blanks alone.
bool counts_as_set(const char* text);

// As NCCL reads its integers (strtoll with base 0; NCCL 2.4 to 2.32, param.cc): blanks before it, a
// sign, hexadecimal behind 0x, octal behind 0.  Blanks may follow; what else follows NCCL drops,
// and we refuse, for it is a mistake.
std::optional<std::int64_t> parse_integer(std::string_view text);

// The digits that `text` begins with, in the base that their prefix names.
struct Digits {
  std::uint64_t value = 0;
  std::string_view rest;  // what follows them
};
// nullopt where there is no digit, or more than 64 bits of them.
std::optional<Digits> leading_digits(std::string_view text);

// Control characters as escapes: '\r' as "\r", others as "\x1b".
std::string printable(std::string_view text);

// What a stranger's file or variable says, as a message may show it: in quotes, and not long; other
// characters than ASCII's as '?'.
std::string quoted(std::string_view text);

// The same as printable() from a C string into `out` (at least one byte), which is cut and ended by
// 0; allocates nothing.
void write_printable(const char* text, std::span<char> out);

}  // namespace twinpath
