#include "plugin/base/option_values.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "plugin/base/ip_range.h"
#include "plugin/base/peer_modes.h"
#include "plugin/base/text.h"

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
constexpr std::array<Named<AtomicsChoice>, 3> kAtomicsNames{{
    {"auto", AtomicsChoice::automatic},
    {"0", AtomicsChoice::never},
    {"1", AtomicsChoice::always},
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
constexpr std::array<Named<HelperCpus>, 2> kHelperCpusNames{{
    {"near", HelperCpus::near},
    {"inherit", HelperCpus::inherit},
}};
constexpr std::array<Named<TuneChoice>, 2> kTuneNames{{
    {"auto", TuneChoice::automatic},
    {"off", TuneChoice::off},
}};
// NCCL's words, and ours for what NCCL does not tell apart.
constexpr std::array<std::string_view, 11> kGdrLevels{"LOC", "SELF", "PIX",  "PXB",  "C2C", "P2C",
                                                      "PXN", "PHB",  "NODE", "SOCK", "SYS"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

template <class Table, class E>
bool parse_named(const Table& table, std::string_view text, E& out, std::string& why) {
  why = "must be one of";
  // A number is one however it is written: "0x1" and "+1" are the table's "1".
  const std::optional<std::int64_t> number = parse_integer(text);
  for (const auto& entry : table) {
    if (entry.name == text || (number && parse_integer(entry.name) == number)) {
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

}  // namespace

// Words, or a number, which NCCL asks only whether it is 0.
bool parse_value(std::string_view text, bool& out, std::string& why) {
  const std::string word = lower(text);
  for (std::string_view yes : {"yes", "true", "on", "y"}) {
    if (word == yes) return out = true, true;
  }
  for (std::string_view no : {"no", "false", "off", "n"}) {
    if (word == no) return out = false, true;
  }
  if (const std::optional<std::int64_t> number = parse_integer(text))
    return out = *number != 0, true;
  why = "must be 0 or 1 (or no, yes, off, on, false, true)";
  return false;
}

bool parse_value(std::string_view text, int& out, std::string& why) {
  const std::optional<std::int64_t> number = parse_integer(text);
  if (!number || *number != static_cast<int>(*number)) {
    why = "must be an integer (decimal, 0x hexadecimal, or octal behind a 0)";
    return false;
  }
  out = static_cast<int>(*number);
  return true;
}

bool parse_value(std::string_view text, Bytes& out, std::string& why) {
  why = "must be a byte count such as 4096, 64k, 2m or 1g";
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  const std::optional<Digits> digits = leading_digits(text);
  if (!digits) return false;
  const std::uint64_t value = digits->value;
  const std::string unit = lower(trimmed(digits->rest));
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
bool parse_value(std::string_view text, AtomicsChoice& out, std::string& why) {
  return parse_named(kAtomicsNames, text, out, why);
}

bool parse_value(std::string_view text, QueuePlace& out, std::string& why) {
  return parse_named(kQueuePlaceNames, text, out, why);
}
bool parse_value(std::string_view text, HelperCpus& out, std::string& why) {
  return parse_named(kHelperCpusNames, text, out, why);
}

bool parse_value(std::string_view text, SoftCuda& out, std::string& why) {
  // What it was called while there was one way only.
  return parse_named(kSoftCudaNames, parse_integer(text) == 1 ? "process" : text, out, why);
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
std::string print_value(AtomicsChoice v) { return print_named(kAtomicsNames, v); }
std::string print_value(EngineChoice v) { return print_named(kEngineNames, v); }
std::string print_value(ModeChoice v) { return print_named(kModeNames, v); }
std::string print_value(QueuePlace v) { return print_named(kQueuePlaceNames, v); }
std::string print_value(HelperCpus v) { return print_named(kHelperCpusNames, v); }
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
  // NCCL's old numbers, of which it takes all above 5 for 5.
  if (parse_integer(v).value_or(-1) >= 0) return true;
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
