#pragma once
// What a bug report needs, in one archive: the findings for eyes and as JSON,
// what each host told, and the dump of this one, which `--input` replays.
//
// Pure.  Threads: any.
#include "tools/topo/anonymous.h"
#include "tools/topo/compare.h"
#include "tools/topo/tar.h"

namespace twinpath::tools::topo {

// What was found, as it was printed.
struct Findings {
  std::string text;
  Json json;
  std::vector<HostCard> cards;  // empty for a captured machine
};

// Hides the hosts' names and the user's.
void hide_names(const std::vector<HostCard>& cards, const std::string& user, Anonymous& hide);

// Null `hide`: names and addresses stay, but in `dump`, which has none.
std::vector<TarEntry> archive_entries(const Findings& findings, std::vector<TarEntry> dump,
                                      Anonymous* hide);

}  // namespace twinpath::tools::topo
