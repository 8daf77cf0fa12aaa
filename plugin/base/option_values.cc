#include "plugin/base/option_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <vector>

#include "plugin/base/ip_range.h"
#include "plugin/base/peer_modes.h"

namespace twinpath {
namespace {

template <class E>
struct Named {
  std::string_view name;
  E value;
};

constexpr std::array<Named<FabricChoice>, 3> kFabricNames{{
    {"auto", FabricChoice::automatic},
    {"verbs", FabricChoice::verbs},
    {"soft", FabricChoice::soft},
}};
constexpr std::array<Named<EngineChoice>, 3> kEngineNames{{
    {"auto", EngineChoice::automatic},
    {"spin", EngineChoice::spin},
    {"sleep", EngineChoice::sleep},
}};
constexpr std::array<Named<ModeChoice>, kModeChoices> kModeNames{{
    {"auto", ModeChoice::automatic},
    {"stage", ModeChoice::stage},
    {"proxy", ModeChoice::proxy},
    {"gda-cpu", ModeChoice::gda_cpu},
    {"gda", ModeChoice::gda},
}};
// NCCL's numbers.
constexpr std::array<Named<BellChoice>, 3> kBellNames{{
    {"0", BellChoice::automatic},
    {"1", BellChoice::cpu},
    {"2", BellChoice::gpu},
}};
constexpr std::array<Named<QueuePlace>, 2> kQueuePlaceNames{{
    {"host", QueuePlace::host},
    {"gpu", QueuePlace::gpu},
}};
constexpr std::array<Named<SoftCuda>, 3> kSoftCudaNames{{
    {"0", SoftCuda::off},
    {"inprocess", SoftCuda::inprocess},
    {"process", SoftCuda::process},
}};
constexpr std::array<Named<TuneChoice>, 2> kTuneNames{{
    {"auto", TuneChoice::automatic},
    {"off", TuneChoice::off},
}};
// NCCL's words, ours for what NCCL does not tell apart, and NCCL's old numbers.
constexpr std::array<std::string_view, 17> kGdrLevels{"LOC", "SELF", "PIX",  "PXB",  "C2C", "P2C",
                                                      "PXN", "PHB",  "NODE", "SOCK", "SYS", "0",
                                                      "1",   "2",    "3",    "4",    "5"};

template <class Table, class E>
bool parse_named(const Table& table, std::string_view text, E& out, std::string& why) {
  why = "must be one of";
  for (const auto& entry : table) {
    if (entry.name == text) {
      out = entry.value;
      why.clear();
      return true;
    }
    why += (entry.name == table.front().name ? " " : ", ");
    why += entry.name;
  }
  return false;
}

template <class Table, class E>
std::string print_named(const Table& table, E value) {
  for (const auto& entry : table) {
    if (entry.value == value) return std::string(entry.name);
  }
  return "?";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

bool parse_value(std::string_view text, bool& out, std::string& why) {
  const std::string word = lower(text);
  for (std::string_view yes : {"1", "yes", "true", "on", "y"}) {
    if (word == yes) return out = true, true;
  }
  for (std::string_view no : {"0", "no", "false", "off", "n"}) {
    if (word == no) return out = false, true;
  }
  why = "must be 0 or 1 (or no, yes, off, on, false, true)";
  return false;
}

// Decimal, or hexadecimal after 0x, as NCCL reads its integers.
bool parse_value(std::string_view text, int& out, std::string& why) {
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    digits.remove_prefix(2);
    base = 16;
  }
  int value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc{} || stop != end || digits.starts_with('-')) {
    why = "must be an integer";
    return false;
  }
  out = negative ? -value : value;
  return true;
}

bool parse_value(std::string_view text, Bytes& out, std::string& why) {
  why = "must be a byte count such as 4096, 64k, 2m or 1g";
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{}) return false;
  const std::string unit = lower(std::string_view(stop, static_cast<std::size_t>(end - stop)));
  int shift = 0;
  if (unit == "k") {
    shift = 10;
  } else if (unit == "m") {
    shift = 20;
  } else if (unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return false;
  }
  if (((value << shift) >> shift) != value) return false;
  out = Bytes{value << shift};
  why.clear();
  return true;
}

bool parse_value(std::string_view text, std::string& out, std::string&) {
  out = std::string(text);
  return true;
}
bool parse_value(std::string_view text, FabricChoice& out, std::string& why) {
  return parse_named(kFabricNames, text, out, why);
}
bool parse_value(std::string_view text, EngineChoice& out, std::string& why) {
  return parse_named(kEngineNames, text, out, why);
}
bool parse_value(std::string_view text, ModeChoice& out, std::string& why) {
  return parse_named(kModeNames, text, out, why);
}
bool parse_value(std::string_view text, BellChoice& out, std::string& why) {
  return parse_named(kBellNames, text, out, why);
}

bool parse_value(std::string_view text, QueuePlace& out, std::string& why) {
  return parse_named(kQueuePlaceNames, text, out, why);
}
bool parse_value(std::string_view text, SoftCuda& out, std::string& why) {
  // What it was called while there was one way only.
  return parse_named(kSoftCudaNames, text == "1" ? "process" : text, out, why);
}
bool parse_value(std::string_view text, TuneChoice& out, std::string& why) {
  return parse_named(kTuneNames, text, out, why);
}

std::string print_value(bool v) { return v ? "1" : "0"; }
std::string print_value(int v) { return std::to_string(v); }
std::string print_value(Bytes v) {
  constexpr std::array<std::pair<int, char>, 3> kUnits{{{30, 'g'}, {20, 'm'}, {10, 'k'}}};
  for (const auto& [shift, letter] : kUnits) {
    if (v.n != 0 && v.n % (std::uint64_t{1} << shift) == 0) {
      return std::to_string(v.n >> shift) + letter;
    }
  }
  return std::to_string(v.n);
}
std::string print_value(const std::string& v) { return v; }
std::string print_value(FabricChoice v) { return print_named(kFabricNames, v); }
std::string print_value(BellChoice v) { return print_named(kBellNames, v); }
std::string print_value(EngineChoice v) { return print_named(kEngineNames, v); }
std::string print_value(ModeChoice v) { return print_named(kModeNames, v); }
std::string print_value(QueuePlace v) { return print_named(kQueuePlaceNames, v); }
std::string print_value(SoftCuda v) { return print_named(kSoftCudaNames, v); }
std::string print_value(TuneChoice v) { return print_named(kTuneNames, v); }

bool is_job_name(const std::string& v, std::string& why) {
  const bool fits = v.size() <= 48 && std::all_of(v.begin(), v.end(), [](char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                             (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
                    });
  if (!fits) why = "must be at most 48 letters, digits, '.', '_' or '-'";
  return fits;
}

bool is_address_family(const std::string& v, std::string& why) {
  if (v.empty() || v == "AF_INET" || v == "AF_INET6") return true;
  why = "must be AF_INET or AF_INET6";
  return false;
}

bool is_address_range(const std::string& v, std::string& why) {
  if (v.empty() || parse_ip_range(v)) return true;
  why = "must be address/prefix, for example 10.1.0.0/16 or fd00::/8";
  return false;
}

bool is_queue_depth(int v, std::string& why) {
  if (v >= 64 && v <= 32768 && (v & (v - 1)) == 0) return true;
  why = "must be a power of two in 64..32768";
  return false;
}

bool is_stripe_min(Bytes v, std::string& why) {
  if (v.n <= std::uint64_t{1} << 40) return true;
  why = "must be at most 1024g";
  return false;
}

bool is_peer_modes(const std::string& v, std::string& why) {
  return v.empty() || parse_peer_modes(v, why).has_value();
}

bool is_gdr_level(const std::string& v, std::string& why) {
  const std::string word = lower(v);
  if (std::any_of(kGdrLevels.begin(), kGdrLevels.end(),
                  [&](std::string_view level) { return lower(level) == word; }))
    return true;
  why = "must be one of LOC, PIX, PXB, C2C, PHB, NODE, SOCK, SYS, or 0..5";
  return false;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace twinpath
