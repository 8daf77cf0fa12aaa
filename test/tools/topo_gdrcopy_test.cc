// What `twinpath-topo check` and `why` say of GDRCopy, on a machine of one GPU and one HCA.
#include <functional>

#include "test/support/catch.h"
#include "tools/topo/check.h"
#include "tools/topo/why.h"

namespace twinpath::tools::topo {
namespace {

// GPU0 and mlx5_0 below one switch; a second host bridge.
Machine below_one_switch() {
  Machine m;
  const auto bridge = [&](BridgeKind kind, std::optional<int> parent) {
    Bridge b;
    b.kind = kind;
    b.pci.parent = parent;
    b.pci.bus.bus = static_cast<std::uint8_t>(m.bridges.size());
    b.pci.acs = AcsControl{};
    m.bridges.push_back(b);
    return static_cast<int>(m.bridges.size()) - 1;
  };
  const int host = bridge(BridgeKind::host_bridge, {});
  const int upstream = bridge(BridgeKind::upstream, bridge(BridgeKind::root_port, host));
  Gpu g;
  g.pci.parent = bridge(BridgeKind::downstream, upstream);
  g.compute_capability = 80;
  Hca h;
  h.name = "mlx5_0";
  h.kind = HcaKind::mlx5;
  h.pci = PciFunction{};
  h.pci->parent = bridge(BridgeKind::downstream, upstream);
  h.ports.push_back({1, PortState::active, 400, LinkLayer::infiniband, 7, 2, "", {}});
  g.pci.numa = h.pci->numa = 0;
  bridge(BridgeKind::root_port, bridge(BridgeKind::host_bridge, {}));
  g.pci.bus.bus = 0x10;
  h.pci->bus.bus = 0x11;
  m.host.extended_config = true;
  m.numa_nodes.push_back({0, 0, true, "", false});
  m.gpus.push_back(g);
  m.hcas.push_back(h);
  return m;
}

}  // namespace

TEST_CASE("NCCL's flush by a load of the CPU is warned of where data takes another way") {
  struct Flush {
    Machine machine = below_one_switch();
    std::map<std::string, std::string> environment{{"NCCL_GDRCOPY_ENABLE", "1"},
                                                   {"NCCL_GDRCOPY_FLUSH_ENABLE", "0x1"}};
    Settings settings;
  };
  struct Case {
    const char* what;
    std::function<void(Flush&)> change;
    std::optional<Level> level;  // nullopt: it is not spoken of
    const char* fact;
  };
  const auto data_direct = [](Flush& f) {
    f.machine.hcas[0].data_direct = f.machine.hcas[0].pci;
    f.machine.hcas[0].data_direct->bus.bus = 0x12;
    f.machine.hcas[0].data_direct->parent = 6;
  };
  const auto apart = [](Flush& f) { f.machine.hcas[0].pci->parent = 6; };
  const auto hopper = [](Flush& f) { f.machine.gpus[0].compute_capability = 90; };
  const auto set = [](Flush& f, const char* name, const char* value) {
    f.environment[name] = value;
  };
  const Case cases[] = {
      {"one switch", [](Flush&) {}, Level::ok, "takes the way"},
      {"no setting", [](Flush& f) { f.environment.clear(); }, {}, ""},
      {"no GDRCopy, apart",
       [&](Flush& f) { apart(f), set(f, "NCCL_GDRCOPY_ENABLE", "0"); },
       {},
       ""},
      {"GDRCopy for other things, apart",
       [&](Flush& f) { apart(f), set(f, "NCCL_GDRCOPY_FLUSH_ENABLE", "0"); },
       {},
       ""},
      {"other host bridges", apart, Level::warn, "different host bridges"},
      {"one host bridge, two root ports",
       [](Flush& f) { f.machine.hcas[0].pci->parent = 1, f.machine.gpus[0].pci.parent = 0; },
       Level::ok, "takes the way"},
      {"a place that nothing tells",
       [&](Flush& f) { apart(f), f.machine.hcas[0].pci->numa.reset(); }, Level::unknown,
       "nothing tells where"},
      {"ACS redirects the HCA's requests",
       [](Flush& f) { f.machine.bridges[4].pci.acs = AcsControl{0x1d}; }, Level::warn,
       "redirected through the root complex"},
      {"ACS without redirection", [](Flush& f) { f.machine.bridges[4].pci.acs = AcsControl{0x11}; },
       Level::ok, "takes the way"},
      {"ACS not read",
       [](Flush& f) {
         for (Bridge& b : f.machine.bridges) b.pci.acs.reset();
         f.machine.host.extended_config = false;
       },
       Level::unknown, "needs root"},
      {"data direct", data_direct, Level::warn, "data-direct function"},
      {"data direct, Hopper", [&](Flush& f) { data_direct(f), hopper(f); }, Level::warn,
       "data-direct function"},
      {"data direct switched off",
       [&](Flush& f) { data_direct(f), f.settings.config.ib_data_direct = 0; }, Level::ok,
       "takes the way"},
      {"data direct refused",
       [&](Flush& f) {
         data_direct(f);
         ProbeResults p;
         p.data_direct.answer = Answer::no;
         p.dmabuf.answer = Answer::yes;
         f.settings.probes[{0, "mlx5_0"}] = p;
       },
       Level::ok, "takes the way"},
      {"Hopper, apart", [&](Flush& f) { apart(f), hopper(f); }, Level::ok, "needs no flush"},
      {"Hopper, apart, flush asked for",
       [&](Flush& f) { apart(f), hopper(f), set(f, "NCCL_NET_FORCE_FLUSH", "1"); }, Level::warn,
       "different host bridges"},
      {"Hopper linked to its CPU, one switch",
       [&](Flush& f) { hopper(f), f.machine.gpus[0].c2c_node = 0; }, Level::warn, "NVLink-C2C"},
      {"software without a place",
       [](Flush& f) { f.machine.hcas[0].kind = HcaKind::soft, f.machine.hcas[0].pci.reset(); },
       {},
       ""},
      {"GPU memory is not reached, apart",
       [&](Flush& f) { apart(f), f.machine.gpus[0].gdr = false; },
       {},
       ""},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Flush f;
    c.change(f);
    Report r = make_report(f.machine, f.settings);
    r.job.emplace().environment = f.environment;
    Checks checks;
    check_job(r, checks);
    std::vector<const CheckItem*> found;
    for (const CheckItem& i : checks.items())
      if (i.id == "gdrcopy-flush") found.push_back(&i);
    REQUIRE(found.size() == (c.level ? 1 : 0));
    if (!c.level) continue;
    CHECK(found[0]->level == *c.level);
    CHECK(found[0]->fact.find(c.fact) != std::string::npos);
    CHECK(found[0]->objects == std::vector<std::string>{"GPU0 mlx5_0"});
    CHECK((found[0]->remedy.find("unset NCCL_GDRCOPY_FLUSH_ENABLE") == 0) ==
          (*c.level != Level::ok));
  }
}

TEST_CASE("check and why say whether completions go through GDRCopy, and why not") {
  struct Case {
    const char* what;
    bool enabled, usable;
    QueuePlace cqs;
    std::optional<Level> level;  // nullopt: it is not spoken of
    const char *fact, *why;      // empty: no line
  };
  constexpr QueuePlace kHost = QueuePlace::host, kGpu = QueuePlace::gpu;
  const Case cases[] = {
      {"default", false, true, kHost, {}, "", ""},
      {"default, CQs in GPU memory", false, true, kGpu, Level::ok,
       "by copies; NCCL_GDRCOPY_ENABLE=1 would use GDRCopy: told",
       "by copies, not through GDRCopy: NCCL_GDRCOPY_ENABLE is not 1"},
      {"the same without GDRCopy", false, false, kGpu, Level::ok, "by copies",
       "by copies, not through GDRCopy: NCCL_GDRCOPY_ENABLE is not 1"},
      {"asked for, not there", true, false, kHost, Level::warn, "has no effect: told", ""},
      {"asked for CQs, not there", true, false, kGpu, Level::warn,
       "has no effect: told; completions go to GPU memory by copies",
       "by copies, not through GDRCopy: told"},
      {"there, for NCCL alone", true, true, kHost, Level::ok, "only with TWINPATH_GIN_CQ=gpu", ""},
      {"there", true, true, kGpu, Level::ok, "told: completions in GPU memory go through it",
       "through GDRCopy: told"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Settings settings;
    settings.config.gdrcopy = c.enabled;
    settings.config.gin_cq = c.cqs;
    Report r = make_report(below_one_switch(), settings);
    r.job.emplace();
    r.gdrcopy = gpu::GdrState{c.usable, "told"};
    Checks checks;
    check_job(r, checks);
    std::vector<const CheckItem*> found;
    for (const CheckItem& i : checks.items())
      if (i.id == "gdrcopy") found.push_back(&i);
    REQUIRE(found.size() == (c.level ? 1 : 0));
    if (c.level) {
      CHECK(found[0]->level == *c.level);
      CHECK(found[0]->fact.find(c.fact) != std::string::npos);
      CHECK(found[0]->remedy.empty() == (*c.level == Level::ok));
    }
    const Report peer = r;
    for (const Report* other : {static_cast<const Report*>(nullptr), &peer}) {
      std::vector<std::string> lines;
      for (const WhySection& s : why(r, 0, 0, other))
        for (const WhyLine& l : s.lines)
          if (l.part == "completions") lines.push_back(l.fact);
      CHECK(lines == (*c.why == 0 ? std::vector<std::string>{} : std::vector<std::string>{c.why}));
    }
  }
}

}  // namespace twinpath::tools::topo
