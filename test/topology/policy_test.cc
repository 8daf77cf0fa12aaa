// One end's rows: landing (W), source (R), and the settings that overrule them.
#include "topology/decide/policy.h"

#include "test/support/catch.h"

namespace twinpath {
namespace {

// A pair whose HCA registers GPU memory, of a GPU that may be read.
EndFacts working(Distance d) {
  EndFacts f;
  f.distance = d;
  f.probes.dmabuf.answer = Answer::yes;
  f.compute_capability = 90;
  f.port_gbps = 400;
  f.pcie_gbs = 63;
  return f;
}

struct Row {
  const char* what;
  EndFacts facts;
  Rule land_rule;
  std::uint64_t land;
  Reason land_reason;
  Rule source_rule;
  std::uint64_t source;
  Reason source_reason;
};

template <class Change>
EndFacts with(Distance d, Change change) {
  EndFacts f = working(d);
  change(f);
  return f;
}

constexpr std::uint64_t kRoot = 65536;
constexpr std::uint64_t kSocket = 8192;

void check(const Row& row, const EndSettings& settings = {}) {
  CAPTURE(row.what);
  const PlacementRecord p = make_record(row.facts, settings);
  CHECK(name_of(p.land.rule) == name_of(row.land_rule));
  CHECK(direct_bytes(p.land.log2) == row.land);
  CHECK(code_of(p.land.reason) == code_of(row.land_reason));
  CHECK(name_of(p.source.rule) == name_of(row.source_rule));
  CHECK(direct_bytes(p.source.log2) == row.source);
  CHECK(code_of(p.source.reason) == code_of(row.source_reason));
}

}  // namespace

TEST_CASE("each row of the table gives its limit and its reason") {
  using enum Reason;
  const auto nothing = [](EndFacts&) {};
  const auto good_root = [](EndFacts& f) { f.root_good = true; };
  const Row rows[] = {
      {"SELF", with(Distance::self, nothing), Rule::w2, kAnySize, ok_self, Rule::r2, kAnySize,
       ok_self},
      {"PIX", with(Distance::pix, nothing), Rule::w2, kAnySize, ok_pix, Rule::r2, kAnySize, ok_pix},
      {"PXB", with(Distance::pxb, nothing), Rule::w2, kAnySize, ok_pxb, Rule::r2, kAnySize, ok_pxb},
      {"C2C", with(Distance::c2c, nothing), Rule::w2, kAnySize, c2c_near, Rule::r2, kAnySize,
       c2c_near},
      {"PHB, CPU not known", with(Distance::phb, nothing), Rule::w4, kRoot, root_unproven, Rule::r3,
       kRoot, read_unproven},
      {"PHB, CPU good", with(Distance::phb, good_root), Rule::w3, kAnySize, ok_root, Rule::r3,
       kRoot, read_unproven},
      {"NODE, CPU good", with(Distance::node, good_root), Rule::w3, kAnySize, ok_root, Rule::r3,
       kRoot, read_unproven},
      {"NODE, measured both good",
       with(Distance::node,
            [](EndFacts& f) {
              f.measured_write = 41;
              f.measured_read = 31;
            }),
       Rule::w3, kAnySize, ok_measured, Rule::r3, kAnySize, ok_measured},
      {"NODE, measured short of the shares",
       with(Distance::node,
            [](EndFacts& f) {
              f.root_good = true;
              f.measured_write = 39;
              f.measured_read = 29;
            }),
       Rule::w4, kRoot, write_slow, Rule::r3, kRoot, read_slow},
      {"SOCK", with(Distance::sock, good_root), Rule::w5, kSocket, socket_far, Rule::r4, kSocket,
       socket_far},
      {"SYS", with(Distance::sys, nothing), Rule::w5, kSocket, socket_far, Rule::r4, kSocket,
       socket_far},
      {"SYS, measured good", with(Distance::sys, [](EndFacts& f) { f.measured_write = 45; }),
       Rule::w3, kAnySize, ok_measured, Rule::r4, kSocket, socket_far},
      {"UNK on bare metal", with(Distance::unknown, nothing), Rule::w6, kSocket, numa_unknown,
       Rule::r6, kSocket, numa_unknown},
      {"UNK in a VM", with(Distance::unknown, [](EndFacts& f) { f.virtual_machine = true; }),
       Rule::w6, kAnySize, place_hidden, Rule::r6, kRoot, place_hidden},
      {"no PCIe place", with(Distance::unknown, [](EndFacts& f) { f.without_place = true; }),
       Rule::w2, kAnySize, ok_virtual, Rule::r2, kAnySize, ok_virtual},
      {"old GPU without NVLink",
       with(Distance::pix, [](EndFacts& f) { f.compute_capability = 75; }), Rule::w2, kAnySize,
       ok_pix, Rule::r5, 0, read_old_gpu},
      {"old GPU with NVLink",
       with(Distance::pix,
            [](EndFacts& f) {
              f.compute_capability = 70;
              f.nvlink = true;
            }),
       Rule::w2, kAnySize, ok_pix, Rule::r2, kAnySize, ok_pix},
      {"requests redirected by ACS",
       with(Distance::pix, [](EndFacts& f) { f.acs_requests = true; }), Rule::w4, kRoot, gdr_acs,
       Rule::r3, kRoot, gdr_acs},
      {"redirected by ACS, CPU good",
       with(Distance::pxb,
            [](EndFacts& f) {
              f.acs_requests = f.acs_answers = true;
              f.root_good = true;
            }),
       Rule::w3, kAnySize, gdr_acs, Rule::r3, kAnySize, gdr_acs},
      {"redirected by ACS, CPU good, measured slow",
       with(Distance::pix,
            [](EndFacts& f) {
              f.acs_requests = true;
              f.root_good = true;
              f.measured_write = 39;
              f.measured_read = 29;
            }),
       Rule::w4, kRoot, write_slow, Rule::r3, kRoot, read_slow},
      {"redirected by ACS and by the root complex, CPU good",
       with(Distance::phb,
            [](EndFacts& f) {
              f.acs_requests = true;
              f.root_good = true;
            }),
       Rule::w3, kAnySize, ok_root, Rule::r3, kRoot, read_unproven},
      {"answers redirected by ACS", with(Distance::pix, [](EndFacts& f) { f.acs_answers = true; }),
       Rule::w2, kAnySize, ok_pix, Rule::r3, kRoot, gdr_acs},
  };
  for (const Row& row : rows) check(row);
}

TEST_CASE("an end whose HCA registers nothing is staged, and says what the probe met") {
  struct Failure {
    ProbeResults probes;
    bool expected;
    std::uint64_t land;
    Reason reason;
    int error;
  };
  const Probe none{Answer::no, 14, Reason::gdr_none, ""};
  const Probe acs{Answer::no, 524, Reason::gdr_enotsupp, ""};
  const Probe yes{Answer::yes, 0, Reason::none, ""};
  const Failure table[] = {
      {{none, none, {}, {}}, true, 0, Reason::gdr_none, 14},
      {{acs, none, {}, {}}, true, 0, Reason::gdr_enotsupp, 524},
      {{none, acs, {}, {}}, true, 0, Reason::gdr_enotsupp, 524},
      {{acs, yes, {}, {}}, false, kAnySize, Reason::ok_pix, 0},  // peermem does what dma-buf cannot
      {{{}, {}, {}, {}}, false, 0, Reason::gdr_untried, 0},
      {{{}, {}, {}, {}}, true, kAnySize, Reason::ok_pix, 0},
      {{{}, none, {}, {}}, true, 0, Reason::gdr_none, 14},
  };
  for (const Failure& t : table) {
    EndFacts f = working(Distance::pix);
    f.probes = t.probes;
    f.gdr_expected = t.expected;
    const PlacementRecord p = make_record(f, {});
    CHECK(direct_bytes(p.land.log2) == t.land);
    CHECK(direct_bytes(p.source.log2) == t.land);
    CHECK(code_of(p.land.reason) == code_of(t.reason));
    CHECK(p.gdr_error == t.error);
    CHECK(p.can(kCanLand) == (t.land != 0));
  }
}

TEST_CASE(
    "the data-direct function counts where it took an MR, else the physical one, and says so") {
  EndFacts f = working(Distance::sys);
  f.data_direct = Distance::pxb;
  PlacementRecord p = make_record(f, {});
  CHECK(p.distance == Distance::pxb);
  CHECK(p.pf_distance == Distance::sys);
  CHECK(p.land.reason == Reason::dd_used);
  CHECK(p.land.log2 == kAlwaysDirect);
  CHECK((p.flags & kFlagDataDirect) != 0);
  f.gpu_ordered = true;
  CHECK_FALSE(make_record(f, {}).can(kCanOrder));  // data direct always needs the flush
  f.data_direct_refused = true;
  p = make_record(f, {});
  CHECK(p.distance == Distance::sys);
  CHECK(p.land.reason == Reason::socket_far);
  CHECK((p.flags & kFlagDataDirectRefused) != 0);
  CHECK(p.can(kCanOrder));
}

TEST_CASE("NCCL_NET_GDR_LEVEL draws one line through the distances") {
  using enum Distance;
  struct Line {
    Distance level;
    bool vm;
    std::vector<Distance> direct;
  };
  const Line table[] = {
      {self, false, {self}},
      {pxb, false, {self, pix, pxb}},
      {c2c, false, {self, pix, pxb, c2c}},
      {phb, false, {self, pix, pxb, c2c, phb, node}},  // NCCL's PHB spans a NUMA node
      {phb, true, {self, pix, pxb, c2c, phb, node, unknown}},
      {sys, false, {self, pix, pxb, c2c, phb, node, sock, sys, unknown}},
  };
  for (const Line& line : table) {
    for (int i = 0; i < kDistances; ++i) {
      EndFacts f = working(static_cast<Distance>(i));
      f.virtual_machine = line.vm;
      EndSettings s;
      s.gdr_level = line.level;
      const bool direct =
          std::find(line.direct.begin(), line.direct.end(), f.distance) != line.direct.end();
      CAPTURE(std::string(name_of(line.level)), std::string(name_of(f.distance)), line.vm);
      const PlacementRecord p = make_record(f, s);
      CHECK(p.land.rule == Rule::u1);
      CHECK(p.source.rule == Rule::u1);
      CHECK(p.land.log2 == (direct ? kAlwaysDirect : kNeverDirect));
      CHECK(p.source.log2 == (direct ? kAlwaysDirect : kNeverDirect));
      CHECK(p.land.reason == (direct ? Reason::level_allows : Reason::gdr_far));
    }
  }
}

TEST_CASE("NCCL_NET_GDR_READ decides about sources only") {
  EndFacts f = working(Distance::phb);
  f.root_good = true;
  EndSettings s;
  s.gdr_read = 0;
  check({"off", f, Rule::w3, kAnySize, Reason::ok_root, Rule::u2, 0, Reason::read_off}, s);
  s.gdr_read = 1;
  check({"on", f, Rule::w3, kAnySize, Reason::ok_root, Rule::u2, kAnySize, Reason::read_forced}, s);
  f.root_good = false;
  check({"on, writes limited", f, Rule::w4, kRoot, Reason::root_unproven, Rule::u2, kRoot,
         Reason::read_forced},
        s);
  f.compute_capability = 60;
  check({"on, old GPU", f, Rule::w4, kRoot, Reason::root_unproven, Rule::u2, kRoot,
         Reason::read_forced},
        s);
  s.gdr_level = Distance::pxb;
  check({"on, beyond the level", f, Rule::u1, 0, Reason::gdr_far, Rule::u1, 0, Reason::gdr_far}, s);
}

TEST_CASE("capabilities follow from the facts") {
  EndFacts f = working(Distance::pix);
  f.gpu_queues = true;
  f.probes.uar.answer = Answer::yes;
  f.probes.atomics.answer = Answer::yes;
  PlacementRecord p = make_record(f, {});
  CHECK_FALSE(p.can(kCanDevx));  // not an mlx5: no queues at all
  CHECK_FALSE(p.can(kCanGpuRing));
  CHECK_FALSE(p.can(kCanCpuRing));
  CHECK_FALSE(p.can(kCanGpuQueues));
  CHECK(p.ring_reason == Reason::uar_vendor);
  f.soft_queues = true;
  p = make_record(f, {});
  CHECK(p.can(kCanDevx | kCanCpuRing));
  CHECK_FALSE(p.can(kCanGpuRing));  // whatever a probe of something else said
  CHECK(p.ring_reason == Reason::uar_soft);
  f.soft_queues = false;
  f.mlx5 = true;
  CHECK(make_record(f, {}).ring_reason == Reason::devx_none);
  f.devx = true;
  p = make_record(f, {});
  CHECK(p.can(kCanDevx | kCanGpuRing | kCanCpuRing | kCanGpuQueues | kCanAtomics | kCanGpuIssue));
  CHECK(p.ring_reason == Reason::none);
  f.probes.uar = {Answer::no, 800, Reason::uar_perm, ""};
  f.compute_capability = 60;
  p = make_record(f, {});
  CHECK_FALSE(p.can(kCanGpuRing));
  CHECK(p.can(kCanCpuRing));
  CHECK_FALSE(p.can(kCanGpuIssue));
  CHECK(p.ring_reason == Reason::uar_perm);
  CHECK(p.ring_error == 800);
}

TEST_CASE("numbers that do not fit the record are cut, not wrapped") {
  EndFacts f = working(Distance::pix);
  f.gpu = 300;
  f.hca = -1;
  f.rail = 7;
  f.port_gbps = 1e9;
  f.pcie_gbs = 1e9;
  f.measured_read = -4;
  f.compute_capability = 1000;
  const PlacementRecord p = make_record(f, {});
  CHECK(p.gpu == 255);
  CHECK(p.hca == 255);
  CHECK(p.rail == 7);
  CHECK(p.port_gbps == 65535);
  CHECK(p.pcie_dgbs == 65535);
  CHECK(p.read_dgbs == 0);
  CHECK(p.compute_capability == 255);
}

TEST_CASE("the CPUs with a good root complex are those since Zen, Ice Lake and Grace") {
  CHECK(root_complex_good("AuthenticAMD", 0x19, 1));
  CHECK_FALSE(root_complex_good("AuthenticAMD", 0x15, 2));
  CHECK(root_complex_good("GenuineIntel", 6, 0x8f));
  CHECK(root_complex_good("GenuineIntel", 6, 0x6a));
  CHECK_FALSE(root_complex_good("GenuineIntel", 6, 0x55));
  CHECK(root_complex_good("NVIDIA", 0, 0));
  CHECK_FALSE(root_complex_good("", 0, 0));
  CHECK_FALSE(root_complex_good("IBM", 9, 9));
}

}  // namespace twinpath
