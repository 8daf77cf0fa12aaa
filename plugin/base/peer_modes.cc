#include "plugin/base/peer_modes.h"

#include <charconv>

#include "plugin/base/option_values.h"
#include "plugin/base/text.h"

namespace twinpath {
namespace {

bool parse_rank(std::string_view text, int& out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end && out >= 0;
}

}  // namespace

std::string name_of(ModeChoice mode) { return print_value(mode); }

std::optional<std::vector<PeerMode>> parse_peer_modes(std::string_view text, std::string& why) {
  std::vector<PeerMode> out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    const std::size_t colon = entry.find(':');
    const std::string_view ranks = entry.substr(0, colon);
    const std::size_t dash = ranks.find('-');
    PeerMode m;
    const bool numbers =
        colon != std::string_view::npos && parse_rank(ranks.substr(0, dash), m.first) &&
        (dash == std::string_view::npos || parse_rank(ranks.substr(dash + 1), m.last));
    if (!numbers) {
      why = quoted(entry) + " must be rank:mode or first-last:mode";
      return std::nullopt;
    }
    if (dash == std::string_view::npos) m.last = m.first;
    if (m.last < m.first) {
      why = quoted(entry) + " must name the lower rank first";
      return std::nullopt;
    }
    std::string allowed;
    if (!parse_value(entry.substr(colon + 1), m.mode, allowed)) {
      why = "the mode of " + quoted(entry) + " " + allowed;
      return std::nullopt;
    }
    for (const PeerMode& o : out) {
      if (m.last < o.first || o.last < m.first || m.mode == o.mode) continue;
      why = "rank " + std::to_string(m.first > o.first ? m.first : o.first) + " has two modes, " +
            name_of(o.mode) + " and " + name_of(m.mode);
      return std::nullopt;
    }
    out.push_back(m);
  }
  return out;
}

ModeChoice mode_of_peer(const std::vector<PeerMode>& modes, int rank, ModeChoice otherwise) {
  for (const PeerMode& m : modes) {
    if (rank >= m.first && rank <= m.last) return m.mode;
  }
  return otherwise;
}

}  // namespace twinpath
