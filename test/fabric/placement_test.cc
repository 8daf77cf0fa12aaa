// Soft HCAs at chosen places of captured machines: they get the decisions that the adapters which
// really sit there would get, both ends agree, and the log says so once per peer.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "plugin/rdma/devices.h"
#include "test/fabric/fake_gpu.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"
#include "topology/decide/record_machine.h"
#include "topology/model/place.h"
#include "topology/read/read_machine.h"

namespace twinpath::test {
namespace {

Machine captured(const std::string& name) {
  std::string why;
  auto m = read_machine(
      {std::string(TWINPATH_SOURCE_ROOT) + "/test/golden/topology/" + name, false, {}, 0}, why);
  INFO(why);
  REQUIRE(m);
  for (Gpu& g : m->gpus) g.cuda_index = g.index;
  return std::move(*m);
}

Probe answer(Answer a, Reason reason = Reason::none, int error = 0) {
  return {a, error, reason, "asked by the test"};
}

ProbeSteps steps(Answer gdr, Reason reason = Reason::none, int error = 0) {
  const auto gdr_step = [=](int, ibv_pd*) { return answer(gdr, reason, error); };
  const auto no_doorbell = [](int, ibv_pd*) { return answer(Answer::no, Reason::uar_perm, 800); };
  return {gdr_step, gdr_step, no_doorbell, {}};
}

// A GPU of a captured machine and the place of the soft HCA beside the one called `near_hca`.
struct Seat {
  std::string machine = "two-sockets.hwloc.xml";
  std::string near_hca = "mlx5_0";
  int gpu = 0;
  Answer gdr = Answer::yes;
  Reason reason = Reason::none;
  int error = 0;
  ModeChoice mode = ModeChoice::automatic;
  std::string gdr_level;
  int gdr_read = -1;
  bool good_root = false;  // a CPU known to carry peer-to-peer writes
};

PlacementSource source_of(const Seat& seat, const std::string& hca) {
  PlacementSource s;
  s.machine = captured(seat.machine);
  s.machine.host.hostname = "host-of-" + hca;
  if (seat.good_root) {
    s.machine.host.cpu.vendor = "AuthenticAMD";
    s.machine.host.cpu.family = 0x19;
  }
  const Hca* real = s.machine.find_hca(seat.near_hca);
  REQUIRE(real != nullptr);
  REQUIRE(real->pci);
  std::string why;
  INFO(why);
  REQUIRE(place_soft_hca(s.machine, hca, "below=" + real->pci->bus.text(), why));
  s.current_gpu = [gpu = seat.gpu] { return std::optional(gpu); };
  s.probes = steps(seat.gdr, seat.reason, seat.error);
  return s;
}

Config config_of(const Seat& seat) {
  Config c = soft_config();
  c.mode = seat.mode;
  c.net_gdr_level = seat.gdr_level;
  c.net_gdr_read = seat.gdr_read;
  return c;
}

std::shared_ptr<Devices> devices_of(const Seat& seat, const std::string& hca) {
  const Config config = config_of(seat);
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  return std::make_shared<Devices>(std::move(fabric).take(), config, source_of(seat, hca));
}

// soft0 sits at `here`, soft1 at `there`; connects `times` and gives what both ends logged.
std::vector<std::string> decisions(const Seat& here, const Seat& there, int times = 1) {
  auto a = make_proxy_transport(devices_of(here, "soft0"));
  auto b = make_proxy_transport(devices_of(there, "soft1"));
  auto from = a->open_session({1, -1});
  auto to = b->open_session({1, -1});
  REQUIRE(from);
  REQUIRE(to);
  LogCapture log;
  for (int i = 0; i < times; ++i) {
    (void)connect(**from, 0, **to, 1);
  }
  std::vector<std::string> out;
  for (const LogLine& line : log.lines())
    if (line.text.find(": send PROXY") != std::string::npos) out.push_back(line.text);
  std::sort(out.begin(), out.end(), [](const std::string& x, const std::string& y) {
    return x.find("soft0 with") != std::string::npos && y.find("soft0 with") == std::string::npos;
  });
  return out;
}

// "PROXY-GDR (I4 R2 W2)" after "send " or "receive ".
std::string part(const std::string& line, const std::string& word) {
  const std::size_t at = line.find(word + " PROXY");
  if (at == std::string::npos) return "none in: " + line;
  const std::size_t begin = at + word.size() + 1;
  return line.substr(begin, line.find(')', begin) - begin + 1);
}

struct Expectation {
  const char* what;
  Seat here, there;
  const char* send;     // soft0 to soft1
  const char* receive;  // and back
};

}  // namespace

TEST_CASE("a soft HCA at an adapter's place is judged as that adapter") {
  int pairs = 0;
  for (const char* name : {"two-sockets.hwloc.xml", "eight-devices.hwloc.xml",
                           "four-nodes.hwloc.xml", "flat-guest.hwloc.xml"}) {
    const Machine machine = captured(name);
    for (const Gpu& gpu : machine.gpus) {
      for (const Hca& real : machine.hcas) {
        if (!real.pci) continue;
        Seat seat;
        seat.machine = name;
        seat.near_hca = real.name;
        seat.gpu = gpu.index;
        EndFacts facts = pair_facts(machine, &gpu, &real, {});
        facts.probes.dmabuf = facts.probes.peermem = answer(Answer::yes);
        facts.stages = true;
        const PlacementRecord wanted = make_record(facts, {});
        const PlacementRecord got = devices_of(seat, "soft0")->placement(0).record;
        INFO(name << " GPU " << gpu.index << " " << real.name);
        CHECK(got.distance == wanted.distance);
        CHECK(got.land.log2 == wanted.land.log2);
        CHECK(got.source.log2 == wanted.source.log2);
        CHECK(got.land.rule == wanted.land.rule);
        CHECK(got.source.rule == wanted.source.rule);
        CHECK(got.land.reason == wanted.land.reason);
        CHECK(got.source.reason == wanted.source.reason);
        ++pairs;
      }
    }
  }
  CHECK(pairs >= 30);
}

TEST_CASE("both ends decide alike, by both places, and say it once") {
  const auto seat = [](const char* near_hca) {
    Seat s;
    s.near_hca = near_hca;
    return s;
  };
  const Seat pix = seat("mlx5_0"), pxb = seat("mlx5_1"), phb = seat("mlx5_2"),
             node = seat("mlx5_3"), sys = seat("mlx5_4");
  Seat none = pix, staged = pix, sys_level = sys, no_read = pix;
  none.gdr = Answer::no;
  none.reason = Reason::gdr_none;
  none.error = 14;
  staged.mode = ModeChoice::stage;
  sys_level.gdr_level = "SYS";
  no_read.gdr_read = 0;
  Seat good = node;
  good.good_root = true;
  const Expectation table[] = {
      {"PIX to PIX", pix, pix, "PROXY-GDR (I4 R2 W2)", "PROXY-GDR (I4 R2 W2)"},
      {"PXB to PIX", pxb, pix, "PROXY-GDR (I4 R2 W2)", "PROXY-GDR (I4 R2 W2)"},
      {"PHB to PHB", phb, phb, "PROXY-STAGE (I1 R3 W4)", "PROXY-STAGE (I1 R3 W4)"},
      {"NODE to PIX", node, pix, "PROXY-STAGE (I1 R3 W2)", "PROXY-STAGE (I1 R2 W4)"},
      {"NODE of a good CPU to PIX", good, pix, "PROXY-STAGE (I1 R3 W2)", "PROXY-GDR (I4 R2 W3)"},
      {"SYS to SYS", sys, sys, "PROXY-STAGE (I1 R4 W5)", "PROXY-STAGE (I1 R4 W5)"},
      {"PIX to SYS", pix, sys, "PROXY-STAGE (I1 R2 W5)", "PROXY-STAGE (I1 R4 W2)"},
      {"no registration here", none, pix, "PROXY-STAGE (I1 R1 W2)", "PROXY-STAGE (I1 R2 W1)"},
      {"no registration there", pix, none, "PROXY-STAGE (I1 R2 W1)", "PROXY-STAGE (I1 R1 W2)"},
      {"staging asked for at one end", staged, pix, "PROXY-STAGE (U3 U3 U3)",
       "PROXY-STAGE (U3 U3 U3)"},
      {"any distance allowed", sys_level, sys_level, "PROXY-GDR (I4 U1 U1)",
       "PROXY-GDR (I4 U1 U1)"},
      {"no reads here", no_read, pix, "PROXY-STAGE (I1 U2 W2)", "PROXY-GDR (I4 R2 W2)"},
  };
  for (const Expectation& e : table) {
    INFO(e.what);
    const auto lines = decisions(e.here, e.there, 3);
    // Three connections, one line at each end.
    REQUIRE(lines.size() == 2);
    CHECK(part(lines[0], "send") == e.send);
    CHECK(part(lines[0], "receive") == e.receive);
    CHECK(part(lines[1], "send") == e.receive);
    CHECK(part(lines[1], "receive") == e.send);
    CHECK(lines[0].find("GPU0 soft0 with ") != std::string::npos);
    CHECK(lines[0].find(" GPU0 soft1: ") != std::string::npos);
  }
}

TEST_CASE("a doorbell page that the GPU cannot map stands in the record with its error") {
  const PlacementRecord r = devices_of({}, "soft0")->placement(0).record;
  CHECK(r.ring_error == 800);
  CHECK_FALSE(r.can(kCanGpuRing));
  // The soft HCA has no doorbell page at all, so that comes first; an mlx5 adapter there is told
  // UAR_PERM.
  CHECK(r.ring_reason == Reason::uar_soft);
  Machine machine = captured("two-sockets.hwloc.xml");
  EndFacts facts = pair_facts(machine, &machine.gpus[0], machine.find_hca("mlx5_0"), {});
  facts.probes.dmabuf = answer(Answer::yes);
  facts.probes.uar = answer(Answer::no, Reason::uar_perm, 800);
  facts.mlx5 = facts.devx = true;
  const PlacementRecord real = make_record(facts, {});
  const Direction d = decide_direction(real, real, {Pattern::latency, true});
  CHECK(d.mode == Mode::gda_cpu);
  CHECK(d.issue_reason == Reason::uar_perm);
}

TEST_CASE("GPU memory is not offered without a CUDA driver, and the log says so once") {
  Seat seat;
  Config config = config_of(seat);
  config.soft_cuda = SoftCuda::inprocess;
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  (*fabric)->ports[0].peermem = (*fabric)->ports[0].dmabuf = true;
  Devices devices(std::move(fabric).take(), config, source_of(seat, "soft0"));
  LogCapture log;
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(devices.properties(0)->gpu_direct);
    CHECK_FALSE(devices.properties(0)->dmabuf);
  }
  CHECK(log.warnings().empty());
  const auto lines = log.lines();
  CHECK(std::count_if(lines.begin(), lines.end(), [](const auto& line) {
          return line.level == LogLevel::info &&
                 line.text.find("GPU memory is not offered: CUDA driver library not loaded") !=
                     std::string::npos;
        }) == 1);

  FakeGpu gpu;  // the program has loaded it meanwhile
  CHECK(devices.properties(0)->gpu_direct);
  CHECK(devices.properties(0)->dmabuf);
}

TEST_CASE("GPUDirect is withdrawn from NCCL where nothing registers, with the reason") {
  FakeGpu gpu;
  Seat none;
  none.gdr = Answer::no;
  none.reason = Reason::gdr_none;
  none.error = 14;
  Config config = config_of(none);
  config.soft_cuda = SoftCuda::inprocess;
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  REQUIRE((*fabric)->ports[0].dmabuf);
  (*fabric)->ports[0].peermem = true;
  LogCapture log;
  Devices devices(std::move(fabric).take(), config, source_of(none, "soft0"));
  for (int i = 0; i < 3; ++i) {
    auto props = devices.properties(0);
    REQUIRE(props);
    CHECK_FALSE(props->gpu_direct);
    CHECK_FALSE(props->dmabuf);
  }
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("soft0 is offered without GPUDirect RDMA"));
  CHECK(log.has("asked by the test"));

  // A GPU for which nothing could be tried is not judged.
  Seat untried;
  untried.gdr = Answer::untried;
  auto again = open_fabric(config);
  REQUIRE(again);
  Devices hopeful(std::move(again).take(), config, source_of(untried, "soft0"));
  CHECK(hopeful.properties(0)->dmabuf);
}

TEST_CASE("the lesser rail of a merged device counts, and the nearer carries what is not cut") {
  Seat seat;
  PlacementSource source = source_of(seat, "soft0");
  std::string why;
  const std::string far = source.machine.find_hca("mlx5_4")->pci->bus.text();
  REQUIRE(place_soft_hca(source.machine, "soft1", "below=" + far, why));
  auto fabric = open_fabric(config_of(seat));
  REQUIRE(fabric);
  Devices devices(std::move(fabric).take(), config_of(seat), std::move(source));
  const int members[] = {1, 0};
  auto merged = devices.merge(members);
  REQUIRE(merged);
  const Placement::End end = devices.placement(*merged);
  CHECK(end.names.hca == "soft1+soft0");
  CHECK(end.record.distance == Distance::sys);
  CHECK(devices.nearest_rails(*merged) == std::vector<int>{1});
  CHECK(devices.nearest_rails(0) == std::vector<int>{0});
}

TEST_CASE("messages that go whole keep to the rail beside the GPU, long ones use both") {
  Seat seat;
  PlacementSource source = source_of(seat, "soft1");
  std::string why;
  const std::string far = source.machine.find_hca("mlx5_4")->pci->bus.text();
  REQUIRE(place_soft_hca(source.machine, "soft0", "below=" + far, why));
  World world(soft_config("soft0,soft1,soft2,soft3"));
  auto fabric = open_fabric(world.config);
  REQUIRE(fabric);
  Tap::on(**fabric);
  world.transport = make_proxy_transport(
      std::make_shared<Devices>(std::move(fabric).take(), world.config, std::move(source)));
  world.a = world.open(1, -1);
  world.b = world.open(2, -1);
  Link link = world.connect(world.merge({0, 1}), world.merge({2, 3}));
  Buffer out(*link.send, 1 << 20, 1), in(*link.recv, 1 << 20, 2);
  const auto queues_of = [&](std::size_t bytes) {
    Tap::posted.clear();
    for (int i = 0; i < 8; ++i) {
      Request* receive = start_recv(*link.recv, {in.receive(i)});
      Request* send = start_send(*link.send, out, bytes, i, receive);
      (void)finish(send);
      CHECK(finish(receive).bytes[0] == bytes);
    }
    std::set<std::uint32_t> qpns;
    for (const Tap::Posted& p : Tap::posted)
      if (p.kind == WrKind::send_data) qpns.insert(p.qpn);
    return qpns.size();
  };
  CHECK(queues_of(8192) == 1);
  CHECK(queues_of(1 << 20) == 2);
}

TEST_CASE("a topology that cannot be read leaves distances unknown and says why") {
  Config config = soft_config();
  config.topology = "/no/such/topology.xml";
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  LogCapture log;
  const PlacementSource source = live_placement(config, **fabric);
  CHECK(source.machine.gpus.empty());
  CHECK(
      log.has(LogLevel::warn, "TWINPATH_TOPOLOGY cannot be read (/no/such/topology.xml: no such"));
}

TEST_CASE("a damaged topology file is named with its variable, or read; it ends nothing") {
  const auto whole = [](const std::string& name) {
    std::ifstream in(std::string(TWINPATH_SOURCE_ROOT) + "/test/golden/topology/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  Config config = soft_config();
  config.topology = (std::filesystem::temp_directory_path() /
                     ("twinpath-damaged-" + std::to_string(::getpid()) + ".xml"))
                        .string();
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  std::mt19937 random(240);
  int refused = 0;
  for (const char* name : {"two-sockets.hwloc.xml", "eight-devices.hwloc.xml"}) {
    const std::string text = whole(name);
    REQUIRE(text.size() > 1000);
    for (int i = 0; i < 120; ++i) {
      INFO(name << " damage " << i);
      std::string damaged = text;
      // The word that libhwloc's parser died of, and bytes anywhere.
      if (i == 0)
        damaged.replace(damaged.find("complete_cpuset", damaged.find("\"PU\"")), 8, "complexe");
      if (i > 0) damaged[random() % damaged.size()] = static_cast<char>(random() & 0xff);
      std::ofstream(config.topology, std::ios::binary) << damaged;
      LogCapture log;
      const PlacementSource source = live_placement(config, **fabric);
      CHECK(check_machine(source.machine) == "");
      if (!source.machine.gpus.empty()) continue;
      ++refused;
      CHECK(log.has(LogLevel::warn, "TWINPATH_TOPOLOGY cannot be read (" + config.topology + ": "));
    }
  }
  CHECK(refused > 10);
  (void)std::remove(config.topology.c_str());
}

TEST_CASE("a soft HCA's place in the configuration reaches the machine; a bad one is reported") {
  Config config = soft_config("soft0,place=below=0000:14:00.0,soft1,place=numa=77");
  config.topology =
      std::string(TWINPATH_SOURCE_ROOT) + "/test/golden/topology/two-sockets.hwloc.xml";
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  LogCapture log;
  const PlacementSource source = live_placement(config, **fabric);
  REQUIRE(source.machine.find_hca("soft0") != nullptr);
  CHECK(source.machine.find_hca("soft0")->pci);
  REQUIRE(source.machine.find_hca("soft1") != nullptr);
  CHECK_FALSE(source.machine.find_hca("soft1")->pci);
  CHECK(log.has(LogLevel::warn, "TWINPATH_SOFT_HCAS: soft1: "));
}

}  // namespace twinpath::test
