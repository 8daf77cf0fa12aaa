// What `twinpath-topo check` says of facts, without a machine: one change to a host without faults
// at a time.
#include <arpa/inet.h>

#include <functional>

#include "test/support/catch.h"
#include "tools/topo/check.h"

namespace twinpath::tools::topo {
namespace {

IpRange network(const char* text) { return *parse_ip_range(text); }

RailFacts rail(const char* name, const char* address) {
  RailFacts r;
  r.name = name;
  r.roce = true;
  r.mbps = 400000;
  r.mtu = 4096;
  r.network = network(address);
  r.gid = std::string(address).substr(0, std::string(address).find('/'));
  return r;
}

JobFacts healthy() {
  JobFacts j;
  j.descriptors = j.most_descriptors = 1048576;
  j.processes = kNoLimit;
  j.plugin = "/usr/lib/twinpath/libnccl-net.so";
  j.plugin_version = j.own_version = "0.2.0 (0123456789ab)";
  j.nccl_version = "2.28.9";
  j.rails = {rail("mlx5_0", "10.0.0.1/24"), rail("mlx5_1", "10.0.0.2/24")};
  return j;
}

struct Host {
  JobFacts job = healthy();
  Config config;
};

Checks judge(const Host& host) {
  Report r;
  r.job = host.job;
  r.settings.config = host.config;
  Checks out;
  check_job(r, out);
  return out;
}

const CheckItem* find(const Checks& checks, std::string_view id, Level level) {
  for (const CheckItem& i : checks.items())
    if (i.id == id && i.level == level) return &i;
  return nullptr;
}

bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("nothing is found at a host without faults") {
  const Checks checks = judge({});
  CHECK(checks.exit_code(true) == 0);
  CHECK(checks.items().size() > 6);
}

TEST_CASE("each fault of a job's surroundings is found alone, with what to do") {
  struct Case {
    const char* what;
    std::function<void(Host&)> change;
    const char* id;
    Level level;
    const char *fact, *remedy;
  };
  const auto set = [](const char* name, const char* value) {
    return [=](Host& h) { h.job.environment[name] = value; };
  };
  const auto two = [](const char* a, const char* x, const char* b, const char* y) {
    return [=](Host& h) {
      h.job.environment[a] = x;
      h.job.environment[b] = y;
    };
  };
  const Case cases[] = {
      {"few files, more may be had", [](Host& h) { h.job.descriptors = 1024; }, "descriptors",
       Level::warn, "1024", "ulimit -n 1048576"},
      {"few files, no more to be had",
       [](Host& h) { h.job.descriptors = h.job.most_descriptors = 1024; }, "descriptors",
       Level::warn, "1024", "hard limit of 1024"},
      {"files not told", [](Host& h) { h.job.descriptors.reset(); }, "descriptors", Level::unknown,
       "not readable", "ulimit -n"},
      {"few processes", [](Host& h) { h.job.processes = 100; }, "processes", Level::warn, "100",
       "pids.max"},
      {"one core",
       [](Host& h) { h.job.held = "held on 1 of 64 processors: slow; bind to none (a; b)"; },
       "processors", Level::warn, "1 of 64", "bind to none (a; b)"},
      {"no plugin", [](Host& h) { h.job.no_plugin = "libnccl-net-x.so is not there"; }, "plugin",
       Level::fail, "libnccl-net-x.so", "NCCL_NET_PLUGIN"},
      {"another plugin", [](Host& h) { h.job.plugin_version.clear(); }, "plugin", Level::warn,
       "not Twinpath", "NCCL_NET_PLUGIN"},
      {"another version", [](Host& h) { h.job.plugin_version = "0.1.0 (ba9876543210)"; }, "plugin",
       Level::warn, "0.1.0 (ba9876543210)", "one package"},
      {"no NCCL",
       [](Host& h) {
         h.job.nccl_version.clear();
         h.job.no_nccl = "NCCL cannot be opened";
       },
       "nccl", Level::unknown, "cannot be opened", "torch"},
      {"a file says otherwise",
       [](Host& h) {
         h.job.contradictions = {{"NCCL_IB_HCA", "/etc/nccl.conf", "mlx5_1", "mlx5_0"}};
       },
       "settings", Level::warn, "/etc/nccl.conf says 'mlx5_1', 'mlx5_0' holds", "remove one"},
      {"a value is refused", [](Host& h) { h.job.refused = {"NCCL_IB_TIMEOUT: 'x' is refused"}; },
       "settings", Level::warn, "NCCL_IB_TIMEOUT", "twinpath-info"},
      {"a name that nobody reads", [](Host& h) { h.job.unread = {"TWINPATH_FABRICS is unknown"}; },
       "settings", Level::warn, "TWINPATH_FABRICS", "unset"},
      {"no network plugin", set("NCCL_NET_PLUGIN", "none"), "settings", Level::warn, "loads no",
       "unset"},
      {"NCCL's own transport, in any case", set("NCCL_NET", "ib"), "settings", Level::warn,
       "own transport", "NCCL_NET=Twinpath"},
      {"adapters chosen and off", two("NCCL_IB_DISABLE", "1", "NCCL_IB_HCA", "mlx5_0"), "settings",
       Level::warn, "switched off", "unset"},
      {"an index and a range", two("NCCL_IB_GID_INDEX", "3", "NCCL_IB_ADDR_RANGE", "10.0.0.0/8"),
       "settings", Level::warn, "does not count", "unset"},
      {"reached by nobody, sent by the GPU",
       two("NCCL_NET_GDR_LEVEL", "LOC", "TWINPATH_MODE", "gda"), "settings", Level::warn,
       "may not be reached", "unset"},
      {"no adapters",
       [](Host& h) {
         h.job.rails.clear();
         h.job.no_rails = "no adapter is active";
       },
       "rails", Level::fail, "no adapter is active", "twinpath-info"},
      {"a port without an address",
       [](Host& h) {
         h.job.rails[1].gid.clear();
         h.job.rails[1].complaint = "mlx5_1:1: the GID table is empty";
       },
       "address", Level::fail, "table is empty", "NCCL_IB_GID_INDEX"},
      {"not the address asked for",
       [](Host& h) { h.job.rails[1].complaint = "no address is in X"; }, "address", Level::warn,
       "in X", "correct"},
      {"a port whose interface has no address, unlike the other's",
       [](Host& h) {
         h.job.rails[1].gid = "fe80::75:2ff:fe00:b";
         h.job.rails[1].network.reset();
       },
       "address", Level::warn, "fe80::75:2ff:fe00:b is link-local",
       "give its interface an address"},
      {"a network for each rail", [](Host& h) { h.job.rails[1] = rail("mlx5_1", "10.0.1.1/24"); },
       "networks", Level::unknown, "network of its own", "NCCL_IB_SUBNET_AWARE_ROUTING=1"},
      {"small networks that 24 bits do not tell apart, chosen by",
       [](Host& h) {
         h.job.rails = {rail("mlx5_0", "10.0.0.1/30"), rail("mlx5_1", "10.0.0.5/30")};
         h.config.ib_subnet_aware = true;
       },
       "networks", Level::fail, "NCCL_IB_SUBNET_PREFIX_LEN=24", "NCCL_IB_SUBNET_PREFIX_LEN=30"},
      {"the same, not chosen by",
       [](Host& h) {
         h.job.rails = {rail("mlx5_0", "10.0.0.1/30"), rail("mlx5_1", "10.0.0.5/30")};
       },
       "networks", Level::unknown, "NCCL_IB_SUBNET_PREFIX_LEN=24", "NCCL_IB_SUBNET_PREFIX_LEN=30"},
      {"GPU memory not tried", [](Host& h) { h.job.gdr_not_tried = "no CUDA driver"; }, "gdr-tried",
       Level::unknown, "no CUDA driver", "driver"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Host host;
    c.change(host);
    const Checks checks = judge(host);
    const CheckItem* item = find(checks, c.id, c.level);
    REQUIRE(item != nullptr);
    CHECK(has(item->fact, c.fact));
    CHECK(has(item->remedy, c.remedy));
    // And nothing else.
    CHECK(checks.count(Level::unknown) + checks.count(Level::warn) + checks.count(Level::fail) ==
          1);
  }
}

TEST_CASE("settings that only look contradictory are not complained of") {
  const std::pair<const char*, const char*> cases[][2] = {
      {{"NCCL_NET", "Twinpath"}, {"NCCL_IB_HCA", "mlx5_0"}},
      {{"NCCL_IB_DISABLE", "0"}, {"NCCL_IB_HCA", "mlx5_0"}},
      {{"NCCL_IB_GID_INDEX", " "}, {"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}},
      {{"NCCL_NET_GDR_LEVEL", "SYS"}, {"TWINPATH_MODE", "gda"}},
      {{"NCCL_NET_GDR_LEVEL", "LOC"}, {"TWINPATH_MODE", "proxy"}}};
  for (const auto& pair : cases) {
    Host host;
    for (const auto& [name, value] : pair) host.job.environment[name] = value;
    INFO(pair[0].first);
    CHECK(judge(host).exit_code(true) == 0);
  }
}

TEST_CASE("a network for each rail is fine where connections are chosen by network") {
  Host host;
  host.config.ib_subnet_aware = true;
  host.job.rails[1] = rail("mlx5_1", "10.0.1.1/24");
  const Checks checks = judge(host);
  CHECK(checks.exit_code(true) == 0);
  CHECK(has(find(checks, "networks", Level::ok)->fact, "NCCL_IB_SUBNET_AWARE_ROUTING=1"));
  // It has turned itself on.
  host.job.by_network = 24;
  CHECK(judge(host).exit_code(true) == 0);
  CHECK(has(find(judge(host), "networks", Level::ok)->fact, "no router"));
  host.job.by_network.reset();
  // /30 each, told apart by as many bits.
  host.job.rails = {rail("mlx5_0", "10.0.0.1/30"), rail("mlx5_1", "10.0.0.5/30")};
  host.config.ib_subnet_prefix = 30;
  CHECK(judge(host).exit_code(true) == 0);
}

TEST_CASE("a port at half the rate of its like is found, and others are left alone") {
  struct Case {
    const char* what;
    std::function<void(Machine&)> change;
    const char* object;  // empty: nothing is found
  };
  const Case cases[] = {{"as fast as the other", [](Machine&) {}, ""},
                        {"half", [](Machine& m) { m.hcas[1].ports[0].gbps = 200; }, "mlx5_1"},
                        {"another model",
                         [](Machine& m) {
                           m.hcas[1].ports[0].gbps = 200;
                           m.hcas[1].pci->id.device = 0x1019;
                         },
                         ""},
                        {"another board of the model",
                         [](Machine& m) {
                           m.hcas[1].ports[0].gbps = 200;
                           m.hcas[1].board = "MT_0000000834";
                         },
                         ""},
                        {"down, which has a finding of its own",
                         [](Machine& m) {
                           m.hcas[1].ports[0].gbps = 10;
                           m.hcas[1].ports[0].state = PortState::down;
                         },
                         ""},
                        {"for management",
                         [](Machine& m) {
                           m.hcas[1].ports[0].gbps = 25;
                           m.hcas[1].role = HcaRole::management;
                         },
                         ""},
                        {"the second port of one",
                         [](Machine& m) {
                           m.hcas[0].ports.push_back(m.hcas[0].ports[0]);
                           m.hcas[0].ports[1].number = 2;
                           m.hcas[0].ports[1].gbps = 200;
                         },
                         "mlx5_0:2"}};
  for (const Case& c : cases) {
    INFO(c.what);
    Report r;
    for (const char* name : {"mlx5_0", "mlx5_1"}) {
      Hca h;
      h.name = name;
      h.kind = HcaKind::mlx5;
      h.pci = PciFunction{};
      h.pci->id.vendor = 0x15b3;
      h.pci->id.device = 0x1021;
      h.ports.push_back({1, PortState::active, 400, LinkLayer::ethernet, 0, 2, "eth0", 9000});
      r.machine.hcas.push_back(h);
    }
    c.change(r.machine);
    Checks checks;
    check_ports(r, checks);
    const CheckItem* item = find(checks, "port-rate", Level::warn);
    REQUIRE((item != nullptr) == (*c.object != '\0'));
    if (item == nullptr) continue;
    CHECK(item->objects == std::vector<std::string>{c.object});
    CHECK(has(item->fact, "400"));
  }
}

TEST_CASE("a library tells its version among its bytes") {
  const std::string zero(1, '\0');
  CHECK(version_in("junk 1.2 (x)" + zero + "0.2.0 (0123456789ab)" + zero) ==
        "0.2.0 (0123456789ab)");
  CHECK(version_in(zero + "0.2.0 (0123456789ab-dirty)") == "0.2.0 (0123456789ab-dirty)");
  CHECK(version_in(zero + "1.10.3 (no commit)" + zero) == "1.10.3 (no commit)");
  for (const char* none : {"", " (", "2.28.9 (cuda12.9)", "0.2.0 (0123456789a)", "0.2.0 (", "0.2 "})
    CHECK(version_in(none).empty());
}

TEST_CASE("addresses are of one network by as many bits as are asked for") {
  CHECK(on_one_network(network("10.0.0.1/24"), network("10.0.0.200/24"), 24));
  CHECK_FALSE(on_one_network(network("10.0.0.1/30"), network("10.0.0.5/30"), 30));
  CHECK(on_one_network(network("10.0.0.1/30"), network("10.0.0.5/30"), 24));
  CHECK_FALSE(on_one_network(network("10.0.0.1/24"), network("fd00::1/64"), 1));
  CHECK(on_one_network(network("fd00::1/64"), network("fd00::2/64"), 24));
  CHECK_FALSE(on_one_network(network("fd00:0:0:1::1/64"), network("fd00:0:0:2::1/64"), 24));
}

}  // namespace twinpath::tools::topo
