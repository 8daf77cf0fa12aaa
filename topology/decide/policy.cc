// Rows W1..W6, R1..R6 and the settings U1, U2.
#include "topology/decide/policy.h"

#include <algorithm>

namespace twinpath {
namespace {

bool near(Distance d) { return d <= Distance::c2c; }
bool by_root(Distance d) { return d == Distance::phb || d == Distance::node; }

// What an end may hope for: the slower of PCIe and port; 0 when neither is known.
double line_gbs(const EndFacts& f) {
  const double port = f.port_gbps / 8;
  if (f.pcie_gbs <= 0) return std::max(port, 0.0);
  return port <= 0 ? f.pcie_gbs : std::min(port, f.pcie_gbs);
}

enum class Measured { unknown, good, bad };
Measured judge_rate(double rate, double line, double share) {
  if (rate <= 0 || line <= 0) return Measured::unknown;
  return rate >= share * line ? Measured::good : Measured::bad;
}

Reason why_near(const EndFacts& f, Distance d) {
  if (f.without_place) return Reason::ok_virtual;
  if (f.data_direct && !f.data_direct_refused) return Reason::dd_used;
  switch (d) {
    case Distance::self:
      return Reason::ok_self;
    case Distance::pix:
      return Reason::ok_pix;
    case Distance::pxb:
      return Reason::ok_pxb;
    default:
      return Reason::c2c_near;
  }
}

// NCCL_NET_GDR_LEVEL.  NCCL's PHB spans host bridges of one NUMA node; where the place is not told
// a VM counts as one node, anything else as far.
bool within_level(const EndFacts& f, Distance d, Distance level) {
  if (f.without_place) return level >= Distance::sys;
  if (level == Distance::phb) level = Distance::node;
  if (d == Distance::unknown) d = f.virtual_machine ? Distance::node : Distance::sys;
  return d <= level;
}

Reason refusal(const EndFacts& f) {
  const Probe& p = f.probes.gdr_refusal();
  return p.reason == Reason::none ? Reason::gdr_untried : p.reason;
}

bool registers(const EndFacts& f) {
  return f.probes.gdr_untried() ? f.gdr_expected : f.probes.gdr();
}

DirectUse judge_landing(const EndFacts& f, const EndSettings& s, Distance d) {
  if (!registers(f)) return {kNeverDirect, Rule::w1, refusal(f)};
  if (s.gdr_level) {
    if (!within_level(f, d, *s.gdr_level)) return {kNeverDirect, Rule::u1, Reason::gdr_far};
    return {kAlwaysDirect, Rule::u1, Reason::level_allows};
  }
  const bool redirected = f.acs_requests && near(d);
  if (f.without_place || (near(d) && !redirected)) return {kAlwaysDirect, Rule::w2, why_near(f, d)};
  const Measured m = judge_rate(f.measured_write, line_gbs(f), kGoodWriteShare);
  if (m == Measured::good) return {kAlwaysDirect, Rule::w3, Reason::ok_measured};
  const bool slow = m == Measured::bad;
  if (by_root(d) || redirected) {
    if (f.root_good && !slow)
      return {kAlwaysDirect, Rule::w3, redirected ? Reason::gdr_acs : Reason::ok_root};
    const Reason why = redirected ? Reason::gdr_acs : Reason::root_unproven;
    return {kRootLog2, Rule::w4, slow ? Reason::write_slow : why};
  }
  if (d == Distance::unknown) {
    if (f.virtual_machine && !slow) return {kAlwaysDirect, Rule::w6, Reason::place_hidden};
    return {kSocketLog2, Rule::w6, slow ? Reason::write_slow : Reason::numa_unknown};
  }
  return {kSocketLog2, Rule::w5, slow ? Reason::write_slow : Reason::socket_far};
}

DirectUse judge_source(const EndFacts& f, const EndSettings& s, Distance d) {
  if (!registers(f)) return {kNeverDirect, Rule::r1, refusal(f)};
  if (s.gdr_read == 0) return {kNeverDirect, Rule::u2, Reason::read_off};
  // Before the near rows: NCCL keeps such GPUs from being read at any distance.
  if (s.gdr_read < 0 && f.compute_capability > 0 && f.compute_capability < 80 && !f.nvlink)
    return {kNeverDirect, Rule::r5, Reason::read_old_gpu};
  if (s.gdr_level) {
    if (!within_level(f, d, *s.gdr_level)) return {kNeverDirect, Rule::u1, Reason::gdr_far};
    return {kAlwaysDirect, Rule::u1, Reason::level_allows};
  }
  // A read's data are the answer, its request goes as a write does.
  const bool redirected = (f.acs_requests || f.acs_answers) && near(d);
  if (f.without_place || (near(d) && !redirected)) return {kAlwaysDirect, Rule::r2, why_near(f, d)};
  if (s.gdr_read == 1) return {judge_landing(f, s, d).log2, Rule::u2, Reason::read_forced};
  const Measured m = judge_rate(f.measured_read, line_gbs(f), kGoodReadShare);
  if (m == Measured::good) return {kAlwaysDirect, Rule::r3, Reason::ok_measured};
  const bool slow = m == Measured::bad;
  // The way past the root complex is no reason to stage what the devices are near enough for, where
  // it is known to carry what they exchange at full rate; from devices on other root ports reads
  // are still unproven.
  if (redirected && f.root_good && !slow) return {kAlwaysDirect, Rule::r3, Reason::gdr_acs};
  if (by_root(d) || redirected) {
    const Reason why = redirected ? Reason::gdr_acs : Reason::read_unproven;
    return {kRootLog2, Rule::r3, slow ? Reason::read_slow : why};
  }
  if (d == Distance::unknown) {
    const std::uint8_t limit = f.virtual_machine ? kRootLog2 : kSocketLog2;
    const Reason why = f.virtual_machine ? Reason::place_hidden : Reason::numa_unknown;
    return {limit, Rule::r6, slow ? Reason::read_slow : why};
  }
  return {kSocketLog2, Rule::r4, slow ? Reason::read_slow : Reason::socket_far};
}

Reason why_no_ring(const EndFacts& f) {
  if (!f.mlx5) return f.soft_queues ? Reason::uar_soft : Reason::uar_vendor;
  if (!f.devx) return Reason::devx_none;
  switch (f.probes.uar.answer) {
    case Answer::yes:
      return Reason::none;
    case Answer::untried:
      return Reason::uar_untried;
    case Answer::no:
      break;
  }
  return f.probes.uar.reason == Reason::none ? Reason::uar_failed : f.probes.uar.reason;
}

std::uint8_t narrow(const std::optional<int>& v) {
  return v && *v >= 0 && *v < 255 ? static_cast<std::uint8_t>(*v) : std::uint8_t{255};
}
std::uint16_t tenths(double rate) {
  return static_cast<std::uint16_t>(std::clamp(rate * 10 + 0.5, 0.0, 65535.0));
}
std::uint16_t error_number(int error) {
  return static_cast<std::uint16_t>(std::clamp(error, 0, 65535));
}

}  // namespace

PlacementRecord make_record(const EndFacts& f, const EndSettings& s) {
  PlacementRecord p;
  p.host = f.host;
  p.topology = f.topology;
  p.gpu = narrow(f.gpu);
  p.hca = narrow(f.hca);
  p.rail = narrow(f.rail);
  p.wish = s.wish;
  const bool data_direct = f.data_direct && !f.data_direct_refused;
  p.distance = data_direct ? *f.data_direct : f.distance;
  p.pf_distance = f.distance;

  p.land = judge_landing(f, s, p.distance);
  p.source = judge_source(f, s, p.distance);
  p.ring_reason = why_no_ring(f);
  p.gdr_error = error_number(f.probes.gdr_refusal().error);
  p.ring_error = error_number(f.probes.uar.error);

  const auto flag = [&](bool on, RecordFlag bit) {
    if (on) p.flags = static_cast<std::uint16_t>(p.flags | bit);
  };
  flag(data_direct, kFlagDataDirect);
  flag(f.data_direct_refused, kFlagDataDirectRefused);
  flag(f.virtual_machine, kFlagVm);
  flag(f.root_good, kFlagRootGood);
  flag(f.nvlink, kFlagNvlink);
  flag(f.acs_requests || f.acs_answers, kFlagAcs);
  flag(f.without_place, kFlagVirtual);
  flag(f.probes.gdr_untried(), kFlagUntried);
  flag(f.from_platform_file, kFlagPlatform);

  const auto can = [&](bool yes, Capability bit) {
    if (yes) p.capabilities |= bit;
  };
  const bool queues = f.mlx5 ? f.devx : f.soft_queues;
  can(registers(f), kCanLand);
  can(registers(f), kCanSource);
  can(p.ring_reason == Reason::none, kCanGpuRing);
  can(queues, kCanCpuRing);
  can(queues, kCanDevx);
  can(f.probes.atomics.answer == Answer::yes, kCanAtomics);
  can(f.gpu_ordered && !data_direct, kCanOrder);  // data direct passes writes by another way
  can(f.stages, kCanStage);
  can(queues && f.gpu_queues, kCanGpuQueues);
  can(f.compute_capability == 0 || f.compute_capability >= 70, kCanGpuIssue);

  p.compute_capability = static_cast<std::uint8_t>(std::clamp(f.compute_capability, 0, 255));
  p.port_gbps = static_cast<std::uint16_t>(std::clamp(f.port_gbps, 0.0, 65535.0));
  p.pcie_dgbs = tenths(f.pcie_gbs);
  p.read_dgbs = tenths(f.measured_read);
  p.write_dgbs = tenths(f.measured_write);
  return p;
}

bool root_complex_good(std::string_view vendor, int family, int model) {
  if (vendor == "AuthenticAMD") return family >= 0x17;
  if (vendor == "GenuineIntel") return family > 6 || (family == 6 && model >= 0x6a);
  return vendor == "NVIDIA";  // Grace, as record_from_machine names it
}

}  // namespace twinpath
