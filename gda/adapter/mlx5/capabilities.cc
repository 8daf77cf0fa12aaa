#include "gda/adapter/mlx5/capabilities.h"

#include <algorithm>

#include "gda/adapter/mlx5/layout.h"

namespace twinpath::gda::mlx5 {

void Capabilities::read(CapabilityKind kind, std::span<const std::uint8_t> answer) {
  const auto get = [&](Bits bits) { return read_bits(answer, cap::kAnswer[bits]); };
  switch (kind) {
    case CapabilityKind::general:
      reliable = get(cap::rc) != 0;
      atomics = get(cap::atomic) != 0;
      ignores_overrun = get(cap::cq_oi) != 0;
      waits = get(cap::cd) != 0;
      chooses_clock = get(cap::sq_ts_format) != 0;
      ethernet = get(cap::port_type) == 1;
      roce = get(cap::roce) != 0;
      second_page = get(cap::hca_cap_2) != 0;
      cqe_version = get(cap::cqe_version);
      log_max_queue = get(cap::log_max_qp_sz);
      log_max_cq = get(cap::log_max_cq_sz);
      log_max_message = get(cap::log_max_msg);
      log_reads_out = get(cap::log_max_ra_req_qp);
      log_reads_in = get(cap::log_max_ra_res_qp);
      break;
    case CapabilityKind::atomic:
      fetch_add = (get(cap::atomic_operations) & cap::kFetchAdd) != 0;
      eight_bytes = (get(cap::atomic_size_qp) & cap::kEightBytes) != 0;
      host_order = get(cap::endianness_mode) == 1;
      break;
    case CapabilityKind::roce:
      chooses_clock = get(cap::qp_ts_format) != 0;
      roce_v2 = (get(cap::roce_version) & 1u << 2) != 0;
      first_udp_port = static_cast<std::uint16_t>(get(cap::r_roce_min_src_udp_port));
      last_udp_port = static_cast<std::uint16_t>(get(cap::r_roce_max_src_udp_port));
      break;
    case CapabilityKind::general_2:
      break;  // nothing of it is needed: queues have doorbell records
  }
}

std::vector<std::string> missing(const Capabilities& c, unsigned log_depth) {
  std::vector<std::string> out;
  const auto need = [&](bool have, std::string what) {
    if (!have) out.push_back(std::move(what));
  };
  need(c.reliable, "it has no reliable connections (rc)");
  need(c.cqe_version == 1,
       "its completions are of version " + std::to_string(c.cqe_version) + ", not 1 (cqe_version)");
  need(c.ignores_overrun,
       "its completion queues cannot go on without being told what was read (cq_oi)");
  const unsigned longest = std::min(c.log_max_queue, c.log_max_cq);
  need(longest >= log_depth, "its queues hold " + std::to_string(1ul << longest) +
                                 " entries, not " + std::to_string(1ul << log_depth) +
                                 " (log_max_qp_sz, log_max_cq_sz): lower TWINPATH_GIN_DEPTH");
  if (!c.atomics || !c.fetch_add || !c.eight_bytes) {
    need(false, "it has no atomic additions of 8 bytes (atomic_operations, atomic_size_qp)");
  } else {
    need(c.host_order,
         "its atomic additions are in another order of bytes than the host's "
         "(atomic_req_8B_endianness_mode): update its firmware or driver");
  }
  if (c.ethernet) {
    need(c.roce && c.roce_v2, "it has no RoCE v2 (roce, roce_version)");
    need(!c.roce_v2 || c.first_udp_port <= c.last_udp_port, "it has no UDP ports for RoCE");
  }
  return out;
}

}  // namespace twinpath::gda::mlx5
