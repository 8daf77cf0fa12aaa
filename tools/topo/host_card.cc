#include "tools/topo/host_card.h"

#include "tools/common/failure.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

constexpr const char* kVersion = "twinpath-topo-card/1";
constexpr Level kLevels[] = {Level::ok, Level::unknown, Level::warn, Level::fail};

Json rail_json(const RailFacts& r) {
  Json j{{"name", r.name}, {"roce", r.roce}, {"mbps", r.mbps}, {"mtu", r.mtu}, {"gid", r.gid}};
  j["prefix"] = r.network ? Json(r.network->prefix) : Json(nullptr);
  return j;
}

RailFacts parse_rail(const Json& j) {
  RailFacts r;
  j.at("name").get_to(r.name);
  j.at("roce").get_to(r.roce);
  j.at("mbps").get_to(r.mbps);
  j.at("mtu").get_to(r.mtu);
  j.at("gid").get_to(r.gid);
  if (!j.at("prefix").is_null())
    r.network = parse_ip_range(r.gid + "/" + std::to_string(j.at("prefix").get<int>()));
  return r;
}

Json item_json(const CheckItem& i) {
  return {{"group", i.group},          {"id", i.id},     {"objects", i.objects},
          {"level", name_of(i.level)}, {"fact", i.fact}, {"remedy", i.remedy}};
}

CheckItem parse_item(const Json& j) {
  CheckItem i{j.at("group"),  j.at("id"),   j.at("objects"),
              Level::unknown, j.at("fact"), j.at("remedy")};
  for (const Level l : kLevels)
    if (j.at("level") == name_of(l)) i.level = l;
  return i;
}

}  // namespace

HostCard make_card(const Report& report, const Checks& checks) {
  const Machine& m = report.machine;
  const JobFacts& j = *report.job;
  HostCard c;
  c.name = m.host.hostname;
  c.kernel = m.host.kernel;
  c.driver = m.host.nvidia_driver.value_or("");
  c.plugin = j.plugin_version;
  c.nccl = j.nccl_version;
  for (const Hca& h : m.hcas)
    if (h.role == HcaRole::data && h.foreign.empty())
      c.hcas.push_back({h.name, h.board.empty() ? hca_model(h) : h.board, h.firmware});
  c.rails = j.rails;
  c.environment = j.environment;
  c.subnet_aware = report.settings.config.ib_subnet_aware;
  c.subnet_prefix = report.settings.config.ib_subnet_prefix;
  c.found = checks.items();
  return c;
}

Json card_json(const HostCard& c) {
  Json j{{"card", kVersion},
         {"name", c.name},
         {"kernel", c.kernel},
         {"driver", c.driver},
         {"plugin", c.plugin},
         {"nccl", c.nccl},
         {"environment", c.environment},
         {"subnet_aware", c.subnet_aware},
         {"subnet_prefix", c.subnet_prefix}};
  j["hcas"] = j["rails"] = j["found"] = Json::array();
  for (const HcaCard& h : c.hcas)
    j["hcas"].push_back({{"name", h.name}, {"model", h.model}, {"firmware", h.firmware}});
  for (const RailFacts& r : c.rails) j["rails"].push_back(rail_json(r));
  for (const CheckItem& i : c.found) j["found"].push_back(item_json(i));
  return j;
}

HostCard parse_card(const std::string& text) try {
  const Json j = Json::parse(text);
  if (j.at("card") != kVersion)
    throw Failure("a host tells its facts in another form; install one version on all hosts");
  HostCard c;
  j.at("name").get_to(c.name);
  j.at("kernel").get_to(c.kernel);
  j.at("driver").get_to(c.driver);
  j.at("plugin").get_to(c.plugin);
  j.at("nccl").get_to(c.nccl);
  j.at("environment").get_to(c.environment);
  j.at("subnet_aware").get_to(c.subnet_aware);
  j.at("subnet_prefix").get_to(c.subnet_prefix);
  for (const Json& h : j.at("hcas"))
    c.hcas.push_back({h.at("name"), h.at("model"), h.at("firmware")});
  for (const Json& r : j.at("rails")) c.rails.push_back(parse_rail(r));
  for (const Json& i : j.at("found")) c.found.push_back(parse_item(i));
  return c;
} catch (const Json::exception& e) {
  throw Failure(std::string("a host's facts cannot be read: ") + e.what() +
                "; install one version on all hosts");
}

void tell_apart(std::vector<HostCard>& cards) {
  std::map<std::string, int> seen;
  for (HostCard& c : cards)
    if (const int n = seen[c.name]++; n > 0) c.name += "#" + std::to_string(n);
}

}  // namespace twinpath::tools::topo
