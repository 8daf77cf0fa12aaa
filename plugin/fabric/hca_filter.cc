// NCCL_IB_HCA: which adapters and ports may be used.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "plugin/fabric/fabric.h"

namespace twinpath {
namespace {

constexpr std::size_t kMaxEntries = 32;  // as in NCCL

// A port, rail or plane number; an empty field means "any".
bool parse_number(std::string_view text, int& out) {
  out = -1;
  if (text.empty()) return true;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && out >= 0;
}

// Takes the text up to `mark` off the front.
std::string_view next_field(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  const std::string_view field = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return field;
}

}  // namespace

std::optional<HcaFilter> HcaFilter::parse(std::string_view text, std::string& why) {
  HcaFilter filter;
  if (text.starts_with('^')) {
    filter.exclude_ = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    filter.exact_ = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const std::string_view item = next_field(text, ',');
    if (item.empty()) continue;  // "a,,b" and a trailing comma are common and harmless
    const auto quoted = "'" + std::string(item) + "'";
    std::string_view rest = item;
    Entry entry;
    entry.name = std::string(next_field(rest, ':'));
    if (entry.name.empty()) {
      why = quoted + " has no adapter name before the port";
      return std::nullopt;
    }
    if (entry.name.find_first_of("^= \t") != std::string::npos) {
      why = quoted + ": '^', '=' and blanks may not stand in a name; ^ and = go first, once";
      return std::nullopt;
    }
    const std::string_view port = next_field(rest, ':');
    if (!parse_number(port, entry.port) || entry.port == 0 || entry.port > 255) {
      why = quoted + ": the port must be a number from 1 to 255";
      return std::nullopt;
    }
    // Since NCCL 2.30 a rail and a plane may follow; they do not choose adapters.
    NetworkPlace& place = entry.place;
    if (!parse_number(next_field(rest, ':'), place.rail) || !parse_number(rest, place.plane)) {
      why = quoted + " is not name[:port[:rail[:plane]]]";
      return std::nullopt;
    }
    if (place.rail > kMostRail || place.plane > kMostPlane) {
      why = quoted + ": a rail is at most " + std::to_string(kMostRail) + ", a plane at most " +
            std::to_string(kMostPlane);
      return std::nullopt;
    }
    if (filter.entries_.size() == kMaxEntries) {
      why =
          "more than " + std::to_string(kMaxEntries) + " entries, the first too many is " + quoted;
      return std::nullopt;
    }
    filter.entries_.push_back(std::move(entry));
  }
  return filter;
}

bool HcaFilter::entry_matches(const Entry& e, std::string_view device, int port) const {
  const bool name = exact_ ? device == e.name : device.starts_with(e.name);
  return name && (e.port == -1 || e.port == port);
}

bool HcaFilter::accepts(std::string_view device, int port) const {
  if (entries_.empty()) return true;
  const bool found = std::any_of(entries_.begin(), entries_.end(),
                                 [&](const Entry& e) { return entry_matches(e, device, port); });
  return found != exclude_;
}

NetworkPlace HcaFilter::place(std::string_view device, int port) const {
  if (exclude_) return {};
  for (const Entry& e : entries_)
    if (entry_matches(e, device, port)) return e.place;
  return {};
}

std::vector<std::string> HcaFilter::unmatched(
    const std::vector<std::pair<std::string, int>>& present) const {
  std::vector<std::string> out;
  for (const Entry& e : entries_) {
    const bool found = std::any_of(present.begin(), present.end(), [&](const auto& p) {
      return entry_matches(e, p.first, p.second);
    });
    if (!found) out.push_back(e.port == -1 ? e.name : e.name + ":" + std::to_string(e.port));
  }
  return out;
}

}  // namespace twinpath
