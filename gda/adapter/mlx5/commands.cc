#include "gda/adapter/mlx5/commands.h"

namespace twinpath::gda::mlx5 {
namespace {

constexpr std::uint32_t kMigrated = 3;        // the path state of a queue pair without another path
constexpr std::uint32_t kNoReceives = 3;      // rq_type
constexpr std::uint32_t kAdaptersClock = 1;   // ts_format; 0 is free running
constexpr std::uint32_t kInfiniBandSize = 1;  // atomic_mode: 8 bytes, as InfiniBand has them
constexpr std::uint32_t kRetryForever = 7, kRnrTimer = 12;
// opt_param_mask: a transition changes rights only where they are named.
constexpr std::uint32_t kRre = 1u << 1, kRae = 1u << 2, kRwe = 1u << 3;

Command command(Opcode opcode, std::size_t bytes) {
  Command c(bytes);
  c.put(kOpcode, static_cast<std::uint32_t>(opcode));
  return c;
}

Command modify(Opcode opcode, std::uint32_t qpn) {
  Command c = command(opcode, qp::kBytes);
  c.put(kNumber, qpn);
  return c;
}

void allow_all(Command& c) {
  constexpr Part context = qp::kContext;
  c.put(context[qp::rre], 1).put(context[qp::rwe], 1).put(context[qp::rae], 1);
  c.put(context[qp::atomic_mode], kInfiniBandSize);
}

void put_path(Command& c, const Path& p) {
  constexpr Part at = path::kPrimary;
  c.put(at[path::pkey_index], p.pkey_index).put(at[path::vhca_port_num], p.port);
  if (p.ethernet) {
    c.put(at[path::eth_prio], p.service_level & 7u);
    c.put(at[path::dscp], p.traffic_class >> 2);
    c.put(at[path::udp_sport], p.udp_port);
    c.put_bytes(at.at(path::rmac), p.mac);
  } else {
    c.put(at[path::rlid], p.lid).put(at[path::sl], p.service_level);
  }
  if (!p.global) return;
  // On Ethernet there is no other header, and the bit means something else.
  if (!p.ethernet) c.put(at[path::grh], 1).put(at[path::tclass], p.traffic_class);
  c.put(at[path::src_addr_index], p.gid_index).put(at[path::hop_limit], p.hop_limit);
  c.put_bytes(at.at(path::rgid), p.gid);
}

}  // namespace

Command create_cq(const CqRequest& r) {
  constexpr Part context = cq::kContext;
  Command c = command(Opcode::create_cq, cq::kBytes);
  c.put(context[cq::cc], r.collapsed ? 1 : 0).put(context[cq::oi], 1);
  c.put(context[cq::dbr_umem_valid], 1).put(context[cq::dbr_umem_id], r.place.record_umem);
  c.put64(context.at(cq::dbr_addr), r.place.record);
  c.put(context[cq::log_cq_size], r.log_entries).put(context[cq::uar_page], r.uar_page);
  c.put(context[cq::c_eqn], r.eqn);
  c.put64(cq::cq_umem_offset, r.place.queue);
  return c.put(cq::cq_umem_id, r.place.umem).put(cq::cq_umem_valid, 1);
}

Command create_qp(const QpRequest& r) {
  constexpr Part context = qp::kContext;
  Command c = command(Opcode::create_qp, qp::kBytes);
  c.put(context[qp::pm_state], kMigrated).put(context[qp::pd], r.pd);
  c.put(context[qp::ts_format], r.adapters_clock ? kAdaptersClock : 0);
  c.put(context[qp::log_sq_size], r.log_entries).put(context[qp::uar_page], r.uar_page);
  c.put(context[qp::cqn_snd], r.cqn).put(context[qp::cqn_rcv], r.cqn);
  c.put(context[qp::rq_type], kNoReceives).put(context[qp::cd_master], r.waits ? 1 : 0);
  c.put(context[qp::dbr_umem_valid], 1).put(context[qp::dbr_umem_id], r.place.record_umem);
  c.put64(context.at(qp::dbr_addr), r.place.record);
  c.put64(qp::wq_umem_offset, r.place.queue);
  return c.put(qp::wq_umem_id, r.place.umem).put(qp::wq_umem_valid, 1);
}

Command to_init(std::uint32_t qpn, const Path& p) {
  constexpr Part context = qp::kContext;
  Command c = modify(Opcode::rst2init_qp, qpn);
  c.put(context[qp::pm_state], kMigrated);
  c.put(path::kPrimary[path::pkey_index], p.pkey_index);
  c.put(path::kPrimary[path::vhca_port_num], p.port);
  allow_all(c);  // this transition needs no mask for them
  return c;
}

Command to_receive(std::uint32_t qpn, const Joint& j) {
  constexpr Part context = qp::kContext;
  Command c = modify(Opcode::init2rtr_qp, qpn);
  c.put(qp::opt_param_mask, kRre | kRae | kRwe);
  allow_all(c);
  c.put(context[qp::mtu], j.mtu).put(context[qp::log_msg_max], j.log_message);
  c.put(context[qp::remote_qpn], j.far_qpn).put(context[qp::next_rcv_psn], j.far_psn);
  c.put(context[qp::log_rra_max], j.log_reads_in).put(context[qp::min_rnr_nak], kRnrTimer);
  put_path(c, j.path);
  return c;
}

Command to_send(std::uint32_t qpn, const Joint& j) {
  constexpr Part context = qp::kContext;
  Command c = modify(Opcode::rtr2rts_qp, qpn);
  c.put(context[qp::next_send_psn], j.psn).put(context[qp::log_sra_max], j.log_reads_out);
  c.put(context[qp::retry_count], j.retry_count).put(context[qp::rnr_retry], kRetryForever);
  return c.put(path::kPrimary[path::ack_timeout], j.timeout);
}

Command to_error(std::uint32_t qpn) {
  return command(Opcode::qp_2err, kShortBytes).put(kNumber, qpn);
}

Command query_qp(std::uint32_t qpn) {
  return command(Opcode::query_qp, kShortBytes).put(kNumber, qpn);
}

Command query_capabilities(unsigned kind) {
  return command(Opcode::query_hca_cap, kShortBytes).put(kOpMod, kind << 1 | 1);
}

}  // namespace twinpath::gda::mlx5
