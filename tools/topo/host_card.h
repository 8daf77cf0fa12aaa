#pragma once
// What hosts tell each other before a job: the values that should be alike, the rails, and what
// each has found at itself.  As JSON between them.
//
// Pure.  Threads: any.
#include "tools/topo/check.h"
#include "tools/topo/json.h"

namespace twinpath::tools::topo {

struct HcaCard {
  std::string name, model, firmware;
};

struct HostCard {
  std::string name;
  std::string kernel, driver, plugin, nccl;  // empty: not told
  std::vector<HcaCard> hcas;                 // without those for management
  std::vector<RailFacts> rails;
  std::map<std::string, std::string> environment;
  bool subnet_aware = false;
  int subnet_prefix = 24;
  std::vector<CheckItem> found;  // by itself
};

// `report` has job facts.
HostCard make_card(const Report& report, const Checks& checks);
Json card_json(const HostCard& card);
// Throws Failure for what no program of this version has written.
HostCard parse_card(const std::string& text);

// Gives hosts of one name (processes of one machine) names of their own: "node", "node#1".
void tell_apart(std::vector<HostCard>& cards);

}  // namespace twinpath::tools::topo
