#pragma once
// The report as JSON, schema 1: keys and codes are stable, null means not known.
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/topo/check.h"
#include "tools/topo/report.h"
#include "tools/topo/why.h"

namespace twinpath::tools::topo {

using Json = nlohmann::ordered_json;

// As it is printed.  Texts come from files: what is not UTF-8 is replaced, not thrown at.
std::string json_text(const Json& json);

Json report_json(const Report& report);
Json peers_json(const Report& peer, const std::vector<PeerPair>& pairs);
Json checks_json(const Checks& checks, bool strict);
Json why_json(const std::vector<WhySection>& sections);
Json probe_json(const Report& report);

}  // namespace twinpath::tools::topo
