#include "plugin/fabric/soft/mlx5/carrier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kMostRequests =
    4096;                                  // under way at once; longer queues wait in their memory
constexpr std::uint32_t kMostPieces = 16;  // the software HCA's
constexpr std::uint32_t kMostInline = 512;
constexpr std::uint64_t kLongestMessage = 1u << 30;  // as the capabilities say

std::uint32_t at(std::span<const std::uint8_t> context, Field field) {
  return static_cast<std::uint32_t>(get(context, field));
}

unsigned access_of(std::span<const std::uint8_t> context) {
  unsigned access = IBV_ACCESS_LOCAL_WRITE;
  if (at(context, qp::kRre) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if (at(context, qp::kRwe) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if (at(context, qp::kRae) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  return access;
}

// The attributes of `to`; their mask.
int attributes(State to, std::span<const std::uint8_t> c, ibv_qp_attr& a) {
  a.port_num = static_cast<std::uint8_t>(at(c, qp::kPort));
  a.qp_access_flags = access_of(c);
  switch (to) {
    case State::reset:
      a.qp_state = IBV_QPS_RESET;
      return IBV_QP_STATE;
    case State::error:
      a.qp_state = IBV_QPS_ERR;
      return IBV_QP_STATE;
    case State::init:
      a.qp_state = IBV_QPS_INIT;
      return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    case State::ready_to_receive:
      a.qp_state = IBV_QPS_RTR;
      a.path_mtu = static_cast<ibv_mtu>(at(c, qp::kMtu));
      a.dest_qp_num = at(c, qp::kRemoteQpn);
      a.rq_psn = at(c, qp::kNextReceivePsn);
      a.max_dest_rd_atomic = static_cast<std::uint8_t>(1u << at(c, qp::kLogRraMax));
      a.min_rnr_timer = static_cast<std::uint8_t>(at(c, qp::kMinRnrNak));
      a.ah_attr.port_num = a.port_num;
      a.ah_attr.dlid = static_cast<std::uint16_t>(at(c, qp::kRemoteLid));
      a.ah_attr.sl = static_cast<std::uint8_t>(at(c, qp::kServiceLevel));
      std::copy_n(c.begin() + qp::kRemoteGidHigh.bit / 8, 16, a.ah_attr.grh.dgid.raw);
      a.ah_attr.is_global =
          std::any_of(std::begin(a.ah_attr.grh.dgid.raw), std::end(a.ah_attr.grh.dgid.raw),
                      [](std::uint8_t byte) { return byte != 0; });
      a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(at(c, qp::kGidIndex));
      a.ah_attr.grh.hop_limit = static_cast<std::uint8_t>(at(c, qp::kHopLimit));
      return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS;
    case State::ready_to_send:
      a.qp_state = IBV_QPS_RTS;
      a.timeout = static_cast<std::uint8_t>(at(c, qp::kAckTimeout));
      a.retry_cnt = static_cast<std::uint8_t>(at(c, qp::kRetryCount));
      a.rnr_retry = static_cast<std::uint8_t>(at(c, qp::kRnrRetry));
      a.sq_psn = at(c, qp::kNextSendPsn);
      a.max_rd_atomic = static_cast<std::uint8_t>(1u << at(c, qp::kLogSraMax));
      return IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_ACCESS_FLAGS;
  }
  return 0;
}

// What verbs call it; false for what they do not have.
bool opcode_of(Operation operation, ibv_wr_opcode& opcode) {
  switch (operation) {
    case Operation::write:
      opcode = IBV_WR_RDMA_WRITE;
      return true;
    case Operation::write_immediate:
      opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      return true;
    case Operation::send:
      opcode = IBV_WR_SEND;
      return true;
    case Operation::send_immediate:
      opcode = IBV_WR_SEND_WITH_IMM;
      return true;
    case Operation::read:
      opcode = IBV_WR_RDMA_READ;
      return true;
    case Operation::compare_swap:
      opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
      return true;
    case Operation::fetch_add:
      opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      return true;
    default:
      return false;
  }
}

}  // namespace

Carrier::Carrier(const Surroundings& around, ibv_pd* pd, ibv_srq* srq,
                 std::uint32_t shared_receives, const QueuePairFacts& facts)
    : around_(around) {
  const auto sends =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(facts.send_blocks, 1, kMostRequests));
  const auto receives = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(facts.receive_entries, 1, kMostRequests));
  const auto completions = static_cast<int>(sends + std::max(receives, shared_receives));
  cq_ = around_.verbs.create_cq(pd->context, completions, nullptr, nullptr, 0);
  if (cq_ == nullptr) return;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq_;
  attr.srq = srq;
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;  // the queue's own order of completions is kept by them
  attr.cap = {sends, receives, kMostPieces, kMostPieces, kMostInline};
  qp_ = around_.verbs.create_qp(pd, &attr);
}

Carrier::~Carrier() {
  if (qp_ != nullptr) (void)around_.verbs.destroy_qp(qp_);
  if (cq_ != nullptr) (void)around_.verbs.destroy_cq(cq_);
}

bool Carrier::in_error() const {
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  return around_.verbs.query_qp(qp_, &now, IBV_QP_STATE, &init) == 0 && now.qp_state == IBV_QPS_ERR;
}

int Carrier::change(State to, std::span<const std::uint8_t> context) {
  ibv_qp_attr attr{};
  int mask = attributes(to, context, attr);
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  if (around_.verbs.query_qp(qp_, &now, IBV_QP_STATE, &init) != 0) return EIO;
  // RTS to RTS changes rights and the time that a peer is to wait at most.
  if (to == State::ready_to_send && now.qp_state == IBV_QPS_RTS)
    mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
  attr.min_rnr_timer = static_cast<std::uint8_t>(at(context, qp::kMinRnrNak));
  return around_.verbs.modify_qp(qp_, &attr, mask);
}

int Carrier::post_masked(const Work& work, std::uint64_t id) {
  if (around_.post_masked_atomic == nullptr) return EOPNOTSUPP;
  const Piece& to = work.pieces.front();
  MaskedAtomic atomic;
  atomic.wr_id = id;
  atomic.flags = work.fenced ? unsigned{IBV_SEND_FENCE} : 0u;
  atomic.remote_address = work.remote_address;
  atomic.rkey = work.remote_key;
  atomic.to = {to.address, to.bytes, to.key};
  atomic.compare = work.operation == Operation::masked_compare_swap;
  atomic.add_or_swap = work.add_or_swap;
  atomic.compare_with = work.compare;
  atomic.mask = work.add_or_swap_mask;
  atomic.compare_mask = work.compare_mask;
  if (to.bytes != work.operand_bytes()) return EINVAL;
  return around_.post_masked_atomic(qp_, atomic);
}

int Carrier::post(const Work& work, std::uint64_t id) {
  if (work.masked()) return post_masked(work, id);
  ibv_send_wr wr{}, *bad = nullptr;
  if (!opcode_of(work.operation, wr.opcode)) return EOPNOTSUPP;
  if (work.pieces.size() > kMostPieces || work.inline_data.size() > kMostInline) return EINVAL;
  const bool atomic =
      wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  // An adapter sends it, and the peer refuses it; the software HCA does not take it.
  if (atomic && work.remote_address % sizeof(std::uint64_t) != 0) return EBADMSG;
  if (atomic && work.pieces.front().bytes < sizeof(std::uint64_t)) return EMSGSIZE;
  ibv_sge list[kMostPieces];
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < work.pieces.size(); ++i) {
    list[i] = {work.pieces[i].address, work.pieces[i].bytes, work.pieces[i].key};
    bytes += work.pieces[i].bytes;
  }
  if (bytes > kLongestMessage) return EMSGSIZE;
  wr.num_sge = static_cast<int>(work.pieces.size());
  if (!work.inline_data.empty()) {
    if (wr.num_sge != 0) return EINVAL;
    list[0] = {reinterpret_cast<std::uintptr_t>(work.inline_data.data()),
               static_cast<std::uint32_t>(work.inline_data.size()), 0};
    wr.num_sge = 1;
    wr.send_flags |= IBV_SEND_INLINE;
  }
  wr.wr_id = id;
  wr.sg_list = list;
  wr.imm_data = __builtin_bswap32(work.immediate);
  if (work.solicited) wr.send_flags |= IBV_SEND_SOLICITED;
  if (work.fenced) wr.send_flags |= IBV_SEND_FENCE;
  if (atomic) {
    const bool add = wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = work.remote_address;
    wr.wr.atomic.rkey = work.remote_key;
    wr.wr.atomic.compare_add = add ? work.add_or_swap : work.compare;
    wr.wr.atomic.swap = work.add_or_swap;
  } else {
    wr.wr.rdma.remote_addr = work.remote_address;
    wr.wr.rdma.rkey = work.remote_key;
  }
  return ibv_post_send(qp_, &wr, &bad);
}

int Carrier::post_receive(std::span<const Piece> pieces, std::uint64_t id) {
  if (pieces.size() > kMostPieces) return EINVAL;
  ibv_sge list[kMostPieces];
  for (std::size_t i = 0; i < pieces.size(); ++i)
    list[i] = {pieces[i].address, pieces[i].bytes, pieces[i].key};
  ibv_recv_wr wr{id | kReceive, nullptr, list, static_cast<int>(pieces.size())}, *bad = nullptr;
  return ibv_post_recv(qp_, &wr, &bad);
}

}  // namespace twinpath::soft::mlx5
