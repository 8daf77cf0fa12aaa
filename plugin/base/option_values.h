#pragma once
// How one option value is read, checked and printed, by type.  Only options.cc and peer_modes.cc
// include this.
//
// parse_value: false and `why` (what is allowed, not what was given) for text that is not a
// value of the type.  print_value is its inverse.  A check looks at a parsed value.
#include <string>
#include <string_view>
#include <utility>

#include "plugin/base/config.h"

namespace twinpath {

bool parse_value(std::string_view text, bool& out, std::string& why);
bool parse_value(std::string_view text, int& out, std::string& why);
bool parse_value(std::string_view text, Bytes& out, std::string& why);
bool parse_value(std::string_view text, std::string& out, std::string& why);
bool parse_value(std::string_view text, FabricChoice& out, std::string& why);
bool parse_value(std::string_view text, EngineChoice& out, std::string& why);
bool parse_value(std::string_view text, ModeChoice& out, std::string& why);
bool parse_value(std::string_view text, QueuePlace& out, std::string& why);
bool parse_value(std::string_view text, BellChoice& out, std::string& why);
bool parse_value(std::string_view text, AtomicsChoice& out, std::string& why);
bool parse_value(std::string_view text, SoftCuda& out, std::string& why);
bool parse_value(std::string_view text, HelperCpus& out, std::string& why);
bool parse_value(std::string_view text, TuneChoice& out, std::string& why);

std::string print_value(bool v);
std::string print_value(int v);
std::string print_value(Bytes v);
std::string print_value(const std::string& v);
std::string print_value(FabricChoice v);
std::string print_value(EngineChoice v);
std::string print_value(BellChoice v);
std::string print_value(AtomicsChoice v);
std::string print_value(ModeChoice v);
std::string print_value(QueuePlace v);
std::string print_value(SoftCuda v);
std::string print_value(HelperCpus v);
std::string print_value(TuneChoice v);

template <int kLow, int kHigh>
bool in_range(int v, std::string& why) {
  if (v >= kLow && v <= kHigh) return true;
  why = "must lie in " + std::to_string(kLow) + ".." + std::to_string(kHigh);
  return false;
}

// Checks of strings.
bool is_job_name(const std::string& v, std::string& why);        // goes into object names
bool is_address_family(const std::string& v, std::string& why);  // AF_INET, AF_INET6
bool is_address_range(const std::string& v, std::string& why);   // CIDR
bool is_stripe_min(Bytes v, std::string& why);
bool is_queue_depth(int v, std::string& why);                // power of two, 64..32768
bool is_peer_modes(const std::string& v, std::string& why);  // 3:proxy,7-9:gda
bool is_gdr_level(const std::string& v, std::string& why);   // a distance or NCCL's old number

// Number of single-character insertions, deletions and replacements between two names.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace twinpath
