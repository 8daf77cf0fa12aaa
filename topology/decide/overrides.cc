#include "topology/decide/overrides.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "plugin/base/file.h"
#include "plugin/base/peer_modes.h"
#include "plugin/base/text.h"
#include "topology/model/machine.h"

namespace twinpath {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;  // a file of thousands of pairs has 100 KiB
constexpr std::size_t kMostErrors = 20;

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end;
}

std::vector<std::string_view> split(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = line.find_first_of(kBlank, at);
    words.push_back(line.substr(at, end == std::string_view::npos ? end : end - at));
    at = end == std::string_view::npos ? end : line.find_first_not_of(kBlank, end);
  }
  return words;
}

// "" for *, the canonical form of a bus id; nullopt when it is none.
std::optional<std::string> gpu_name(std::string_view word) {
  if (word == "*") return std::string();
  const auto bus = parse_bus_id(word);
  if (!bus) return std::nullopt;
  return bus->text();
}

// One "KEY value" of a pair's statement; the error, or empty.
std::string pair_value(std::string_view key, std::string_view value, PairOverride& out) {
  const std::string name = upper(key);
  if (name == "CLASS") {
    out.distance = parse_distance(value);
    if (!out.distance)
      return "class " + quoted(value) +
             " is none of SELF, PIX, PXB, C2C, PHB, NODE, SOCK, SYS, UNK";
    return {};
  }
  if (name == "READ" || name == "WRITE") {
    double rate = 0;
    if (!parse_number(value, rate) || !(rate > 0) || rate > 6000)
      return name + " " + quoted(value) + " is no rate in GB/s";
    (name == "READ" ? out.read_gbs : out.write_gbs) = rate;
    return {};
  }
  return quoted(key) + " is none of CLASS, READ, WRITE";
}

}  // namespace

std::optional<Distance> parse_gdr_level(std::string_view text) {
  const std::string word = upper(text);
  if (const auto old = parse_integer(word); old && *old >= 0) {
    constexpr Distance kOld[] = {Distance::self, Distance::pix, Distance::pxb,
                                 Distance::phb,  Distance::sys, Distance::sys};
    return kOld[std::min(*old, std::int64_t{5})];
  }
  if (word == "PXN") return Distance::c2c;  // a relay, which is no placement; beside P2C in NCCL
  const auto d = parse_distance(word);
  return d == Distance::unknown ? std::nullopt : d;
}

EndSettings end_settings(const Config& config, int peer_rank) {
  EndSettings s;
  s.gdr_level = parse_gdr_level(config.net_gdr_level);
  s.gdr_read = config.net_gdr_read;
  std::string why;
  const auto peers = parse_peer_modes(config.peer_mode, why);  // checked by the option table
  s.wish = peers ? mode_of_peer(*peers, peer_rank, config.mode) : config.mode;
  return s;
}

std::string PlatformFile::statement(std::vector<std::string_view> w) {
  const std::string first = upper(w[0]);
  if (first == "HCA" && w.size() >= 3) {
    HcaLine line{std::string(w[1]), false, {}};
    const std::string key = upper(w[2]);
    if (key == "IGNORE" && w.size() == 3) {
      line.ignore = true;
    } else if (int rail = 0; key == "RAIL" && w.size() == 4 && parse_number(w[3], rail) &&
                             rail >= 0 && rail < 255) {
      line.rail = rail;
    } else {
      return "after HCA " + quoted(w[1]) + " comes IGNORE or RAIL 0..254";
    }
    hcas_.push_back(std::move(line));
    return {};
  }
  if (first != "GPU" || w.size() < 6 || w.size() % 2 != 0 || upper(w[2]) != "HCA")
    return "starts with " + quoted(w[0]) +
           "; a statement is GPU <bus id> HCA <name> CLASS <class>, or HCA <name> IGNORE";
  const auto gpu = gpu_name(w[1]);
  if (!gpu) return quoted(w[1]) + " is no bus id such as 0000:17:00.0";
  PairLine line{*gpu, w[3] == "*" ? std::string() : std::string(w[3]), {}};
  for (std::size_t i = 4; i < w.size(); i += 2) {
    if (std::string error = pair_value(w[i], w[i + 1], line.what); !error.empty()) return error;
  }
  pairs_.push_back(std::move(line));
  return {};
}

PlatformFile PlatformFile::parse(std::string_view text) {
  PlatformFile file;
  std::size_t number = 0;
  std::size_t bad = 0;
  bool meant = false;  // some line begins as a statement does
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const std::vector<std::string_view> words = split(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (words.empty()) continue;
    const std::string first = upper(words.front());
    meant = meant || first == "GPU" || first == "HCA";
    const std::string error = file.statement(words);
    if (error.empty()) continue;
    if (++bad <= kMostErrors)
      file.errors_.push_back("line " + std::to_string(number) + ": " + error);
  }
  if (bad > 0 && !meant) {
    // Some other file: its words are nothing to show.
    file.errors_ = {
        "is no platform file: none of its lines is GPU <bus id> HCA <name> CLASS <class>, "
        "HCA <name> IGNORE or HCA <name> RAIL <number>"};
  } else if (bad > kMostErrors) {
    file.errors_.push_back("and " + std::to_string(bad - kMostErrors) + " more lines");
  }
  return file;
}

PlatformFile PlatformFile::load(const std::string& path) {
  std::string why;
  if (const auto text = read_file(path, kMostBytes, why)) return parse(*text);
  PlatformFile file;
  file.errors_.push_back(why);
  return file;
}

PairOverride PlatformFile::pair(std::string_view gpu, std::string_view hca) const {
  const std::string bus = gpu_name(gpu).value_or(std::string(gpu));
  PairOverride out;
  for (const PairLine& line : pairs_) {
    if (!line.gpu.empty() && line.gpu != bus) continue;
    if (!line.hca.empty() && line.hca != hca) continue;
    if (line.what.distance) out.distance = line.what.distance;
    if (line.what.read_gbs) out.read_gbs = line.what.read_gbs;
    if (line.what.write_gbs) out.write_gbs = line.what.write_gbs;
  }
  return out;
}

bool PlatformFile::ignores(std::string_view hca) const {
  return std::any_of(hcas_.begin(), hcas_.end(),
                     [&](const HcaLine& line) { return line.ignore && line.hca == hca; });
}

std::optional<int> PlatformFile::rail(std::string_view hca) const {
  std::optional<int> out;
  for (const HcaLine& line : hcas_) {
    if (line.hca == hca && line.rail) out = line.rail;
  }
  return out;
}

void apply(const PairOverride& from, EndFacts& facts) {
  if (from.distance) {
    facts.distance = *from.distance;
    facts.data_direct.reset();  // the file speaks of the pair, whatever function moves its data
    facts.without_place = false;
    facts.from_platform_file = true;
  }
  if (from.read_gbs) facts.measured_read = *from.read_gbs;
  if (from.write_gbs) facts.measured_write = *from.write_gbs;
}

std::vector<std::string> contradictions(const Config& config) {
  std::vector<std::string> out;
  const auto level = parse_gdr_level(config.net_gdr_level);
  const bool gpu_issued = config.mode >= ModeChoice::gda_cpu;
  const std::string mode = "TWINPATH_MODE=" + name_of(config.mode);
  if (gpu_issued && config.net_gdr_read == 0)
    out.push_back(mode +
                  " needs adapters that read GPU memory, but NCCL_NET_GDR_READ=0 forbids "
                  "it: the CPU proxy stages instead; unset one of them");
  if (gpu_issued && level == Distance::self)
    out.push_back(mode + " needs adapters that reach GPU memory, but NCCL_NET_GDR_LEVEL=" +
                  config.net_gdr_level +
                  " allows it on one device only: the CPU proxy stages instead; unset one of them");
  if (config.mode == ModeChoice::stage && level && level != Distance::self)
    out.push_back(mode + " stages everything, NCCL_NET_GDR_LEVEL=" + config.net_gdr_level +
                  " has no effect");
  if (config.mode == ModeChoice::stage && config.net_gdr_read == 1)
    out.push_back(mode + " stages everything, NCCL_NET_GDR_READ=1 has no effect");
  return out;
}

}  // namespace twinpath
