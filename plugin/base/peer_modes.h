#pragma once
// TWINPATH_PEER_MODE: modes for single peers, "3:proxy,7-9:gda".
//
// Threads: plain values.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"

namespace twinpath {

struct PeerMode {
  int first = 0, last = 0;  // ranks
  ModeChoice mode = ModeChoice::automatic;
};

std::string name_of(ModeChoice mode);  // as the option spells it: "gda-cpu"

// nullopt and `why` for text that is not such a list, or gives one rank two modes.
std::optional<std::vector<PeerMode>> parse_peer_modes(std::string_view text, std::string& why);

// What holds for a peer; `otherwise` for one that the list does not name (rank < 0: not known).
ModeChoice mode_of_peer(const std::vector<PeerMode>& modes, int rank, ModeChoice otherwise);

}  // namespace twinpath
