#include "tools/topo/archive.h"

namespace twinpath::tools::topo {

void hide_names(const std::vector<HostCard>& cards, const std::string& user, Anonymous& hide) {
  for (const HostCard& c : cards) {
    hide.hide("host", c.name);
    hide.hide("host", c.name.substr(0, c.name.find_first_of(".#")));
  }
  if (user != "root") hide.hide("user", user);
}

std::vector<TarEntry> archive_entries(const Findings& findings, std::vector<TarEntry> dump,
                                      Anonymous* hide) {
  Json hosts = Json::array();
  for (const HostCard& c : findings.cards) hosts.push_back(card_json(c));
  const std::pair<const char*, std::string> files[] = {{"check.txt", findings.text},
                                                       {"check.json", json_text(findings.json)},
                                                       {"hosts.json", json_text(hosts)}};
  for (const auto& [name, text] : files)
    dump.push_back({name, TarEntry::Kind::file, hide == nullptr ? text : (*hide)(text), {}});
  return dump;
}

}  // namespace twinpath::tools::topo
