// The table.  Providers are those of rdma-core 65.0 (providers/), drivers those of Linux 6.18
// (drivers/infiniband/hw/).  A row says what differs from the one that it begins with; what only
// the firmware knows (mlx5's, bnxt_re's and mana's depths and numbers of READs) is the model's.
#include "plugin/fabric/soft/personality.h"

#include <algorithm>
#include <cerrno>

namespace twinpath::soft {
namespace {

constexpr unsigned kAllAccess = ~0u;  // register_range has its own list of what there is at all

constexpr Personality kOwn{
    .name = "",
    .identity = {.driver = "twinpath", .device = "soft", .vendor_id = 0x7477, .part_id = 0},
    .queues =
        {
            .max_inline = 512,
            .inline_limit = InlineLimit::refuse,
            .refusal = EINVAL,
            .max_send_sge = 16,
            .max_recv_sge = 16,
            .max_read_sge = 16,
            .max_wr = 32768,
            .max_cqe = 1 << 20,
            .reads_in = 16,
            .reads_out = 16,
            .srq = true,
        },
    .work = {.atomics = IBV_ATOMIC_HCA, .post_in_error = 0, .negative = false},
    .memory = {.access = kAllAccess, .dmabuf = true},
    .ports =
        {
            .max_message = 1u << 30,
            .gids = Gids::v2,
            .gid_entries = 2,
            .infiniband = false,
            .roce_lid = 0,
            .speed_gbps = 400,
            .xdr = false,
            .fixed_speed = false,
            .ece_vendor = 0x5457,  // nobody's
            .ece = 0,
        },
};

// mlx5/verbs.c: create_qp sets errno; sq_overhead (192) and the inline header leave 828 of a work
// request's 1024 bytes.  mlx5_query_ece, mlx5_set_ece: Mellanox's vendor number.  hw/mlx5/main.c:
// mlx5_ib_query_device (SGEs of 512 bytes: 30 and 32), get_atomic_caps_qp, mlx5_query_port_roce.
constexpr Personality mlx5(std::string_view name, std::uint32_t part, int gbps) {
  Personality p = kOwn;
  p.name = name;
  p.identity.driver = "mlx5_core";
  p.identity.device = "mlx5_";
  p.identity.vendor_id = 0x02c9;
  p.identity.part_id = part;  // mlx5/mlx5.c: mlx5_hca_table
  p.queues.max_inline = 828;
  p.queues.max_send_sge = p.queues.max_read_sge = 30;
  p.queues.max_recv_sge = 32;
  p.ports.gids = Gids::v1_and_v2;
  p.ports.gid_entries = 255;
  p.ports.speed_gbps = gbps;
  p.ports.ece_vendor = 0x15b3;
  p.ports.ece = 1;
  return p;
}

// hw/mlx5/mad.c: mlx5_query_mad_ifc_port, main.c: mlx5_query_hca_port.  XDR: ib_uverbs_query_port
// (core/uverbs_std_types_device.c) shows at most NDR in the old field, the rest in
// active_speed_ex.
constexpr Personality infiniband(Personality p, bool xdr = false) {
  p.ports.gids = Gids::infiniband;
  p.ports.gid_entries = 8;
  p.ports.infiniband = true;
  p.ports.ece = 0;
  p.ports.xdr = xdr;
  return p;
}

// bnxt_re/verbs.c: bnxt_re_check_qp_limits and bnxt_re_get_sq_slots (six SGEs, of which inline data
// take 96 bytes) make __bnxt_re_create_qp return null, and nobody sets errno;
// bnxt_re_build_atomic_sqe.  hw/bnxt_re/ib_verbs.c: bnxt_re_query_device (no atomics, as where PCIe
// routes none), bnxt_re_query_port, bnxt_re_get_port_immutable; qplib_sp.c:
// bnxt_qplib_get_dev_attr.
constexpr Personality bnxt_re() {
  Personality p = kOwn;
  p.name = "bnxt_re";
  p.identity.driver = "bnxt_en";
  p.identity.device = "bnxt_re";
  p.identity.vendor_id = 0x14e4;
  p.identity.part_id = 0x1750;
  p.queues.max_inline = 96;
  p.queues.refusal = 0;
  p.queues.max_send_sge = p.queues.max_recv_sge = p.queues.max_read_sge = 6;
  p.queues.reads_in = p.queues.reads_out = 126;
  p.work.atomics = IBV_ATOMIC_NONE;
  p.ports.gids = Gids::v1_and_v2;
  p.ports.gid_entries = 256;
  return p;
}

// mana/qp.c: mana_create_qp_rnic looks at no limit of inline data; mana/wr.c: mana_ib_post_send
// knows no IBV_SEND_INLINE and no atomics, and takes requests in RTS only, mana_ib_post_recv none
// in error.  hw/mana/mr.c: VALID_MR_FLAGS without atomics, other flags EINVAL but for the optional
// range; main.c: mana_ib_query_device, mana_ib_query_port (4X EDR, no max_msg_sz).
constexpr Personality mana() {
  Personality p = kOwn;
  p.name = "mana";
  p.identity.driver = "mana";
  p.identity.device = "mana_";
  p.identity.vendor_id = 0x1414;
  p.identity.part_id = 3;
  p.queues.inline_limit = InlineLimit::ignore;
  p.queues.max_cqe = static_cast<int>(p.queues.max_wr);
  p.queues.srq = false;
  p.work.atomics = IBV_ATOMIC_NONE;
  p.work.post_in_error = EINVAL;
  p.memory.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_OPTIONAL_RANGE;
  p.ports.max_message = 0;
  p.ports.gid_entries = 16;
  p.ports.speed_gbps = 100;
  p.ports.fixed_speed = true;
  return p;
}

// irdma/uverbs.c: irdma_ucreate_qp, irdma_upost_send (no IRDMA_FEATURE_ATOMIC_OPS before the third
// generation).  hw/irdma: ICRDMA_MAX_IRD_SIZE and _ORD_SIZE (icrdma_hw.h),
// IRDMA_MAX_INLINE_DATA_SIZE, _WQ_FRAGMENT_COUNT, _SGE_RD, _OUTBOUND_MSG_SIZE, _CQ_SIZE (user.h);
// verbs.c: irdma_query_device, irdma_query_port (LID 1 on Ethernet, too),
// irdma_roce_port_immutable.
constexpr Personality irdma() {
  Personality p = kOwn;
  p.name = "irdma";
  p.identity.driver = "ice";
  p.identity.device = "irdma";
  p.identity.vendor_id = 0x8086;
  p.identity.part_id = 0x1592;
  p.queues.max_inline = 101;
  p.queues.max_send_sge = p.queues.max_recv_sge = p.queues.max_read_sge = 13;
  p.queues.max_cqe = 1048574;
  p.queues.reads_in = 127;
  p.queues.reads_out = 255;
  p.queues.srq = false;
  p.work.atomics = IBV_ATOMIC_NONE;
  p.ports.max_message = 0x7fffffff;
  p.ports.gid_entries = 32;
  p.ports.roce_lid = 1;
  p.ports.speed_gbps = 100;
  return p;
}

// ionic/ionic_verbs.c: ionic_qp_sq_init and create_qp's errno; ionic_fw_types.h: 480 bytes beside
// the 32 of a work request's head, with strides of 512; no create_srq.  hw/ionic/ionic_ibdev.c:
// ionic_query_device (IONIC_SPEC_HIGH, IONIC_MAX_DEPTH, IONIC_MAX_RD_ATOM, global atomics),
// ionic_query_port, ionic_get_port_immutable (RoCE v2 alone).
constexpr Personality ionic() {
  Personality p = kOwn;
  p.name = "ionic";
  p.identity.driver = "ionic";
  p.identity.device = "ionic_";
  p.identity.vendor_id = 0x1dd8;
  p.identity.part_id = 0x1002;
  p.queues.max_inline = 480;
  p.queues.max_send_sge = p.queues.max_recv_sge = p.queues.max_read_sge = 8;
  p.queues.max_wr = 0xffff;
  p.queues.max_cqe = 0xffff - 100;
  p.queues.srq = false;
  p.work.atomics = IBV_ATOMIC_GLOB;
  p.ports.max_message = 0x80000000;
  p.ports.gid_entries = 256;
  return p;
}

// erdma/erdma_verbs.c: erdma_push_one_sqe, erdma_post_send and erdma_post_recv (values below 0,
// -EIO in error); erdma_hw.h: ERDMA_MAX_INLINE; erdma.c: no dma-bufs, no shared receive queues.
// hw/erdma/erdma_verbs.h: ERDMA_MAX_SEND_WR, _SEND_SGE, _RECV_SGE, _SGE_RD, _ORD, _IRD;
// erdma_verbs.c: erdma_query_device, erdma_query_port, as RoCE.
constexpr Personality erdma() {
  Personality p = kOwn;
  p.name = "erdma";
  p.identity.driver = "erdma";
  p.identity.device = "erdma_";
  p.identity.vendor_id = 0x1ded;
  p.identity.part_id = 0x107f;
  p.queues.max_inline = 96;
  p.queues.max_send_sge = 6;
  p.queues.max_recv_sge = p.queues.max_read_sge = 1;
  p.queues.max_wr = 8192;
  p.queues.reads_in = p.queues.reads_out = 128;
  p.queues.srq = false;
  p.work.atomics = IBV_ATOMIC_GLOB;
  p.work.post_in_error = EIO;
  p.work.negative = true;
  p.memory.dmabuf = false;
  p.ports.max_message = 0xffffffff;
  p.ports.gid_entries = 16;
  p.ports.speed_gbps = 200;
  return p;
}

// hns/hns_roce_u_verbs.c: verify_qp_create_cap, get_max_inline_data (grants what there is); no
// reg_dmabuf_mr.  hw/hns/hns_roce_hw_v2.h: HNS_ROCE_V3_MAX_SQ_INLINE, _V2_MAX_SQ_SGE_NUM,
// _V2_MAX_QP_INIT_RDMA, _V2_MAX_CQE_NUM; hns_roce_main.c: hns_roce_query_port
// (HNS_ROCE_MAX_MSG_LEN), hns_roce_port_immutable.
constexpr Personality hns() {
  Personality p = kOwn;
  p.name = "hns";
  p.identity.driver = "hns3";
  p.identity.device = "hns_";
  p.identity.vendor_id = 0x19e5;
  p.identity.part_id = 0xa222;
  p.queues.max_inline = 1024;
  p.queues.inline_limit = InlineLimit::clamp;
  p.queues.max_send_sge = p.queues.max_recv_sge = p.queues.max_read_sge = 64;
  p.queues.max_cqe = 0x400000;
  p.queues.reads_in = p.queues.reads_out = 128;
  p.memory.dmabuf = false;
  p.ports.max_message = 0x80000000;
  p.ports.gids = Gids::v1_and_v2;
  p.ports.gid_entries = 256;
  p.ports.speed_gbps = 200;
  return p;
}

// rxe/rxe.c: validate_send_wr, no reg_dmabuf_mr.  sw/rxe/rxe_param.h: RXE_MAX_SGE (inline data take
// the place of SGEs), _MAX_QP_WR, _MAX_LOG_CQE, _MAX_QP_RD_ATOM, RXE_PORT_MAX_MSG_SZ,
// _PORT_GID_TBL_LEN; rxe.c: rxe_init_device_param.
constexpr Personality rxe() {
  Personality p = kOwn;
  p.name = "rxe";
  p.identity.driver = "";  // it has no PCI function
  p.identity.device = "rxe";
  p.identity.vendor_id = 0xffffff;
  p.queues.max_send_sge = p.queues.max_recv_sge = p.queues.max_read_sge = 32;
  p.queues.max_wr = 0x4000;
  p.queues.max_cqe = (1 << 15) - 1;
  p.queues.reads_in = p.queues.reads_out = 128;
  p.memory.dmabuf = false;
  p.ports.max_message = 0x800000;
  p.ports.gid_entries = 1024;
  p.ports.speed_gbps = 100;
  return p;
}

constexpr std::array kTable{
    mlx5("mlx5", 0x1021, 400),
    mlx5("mlx5-cx6dx", 0x101d, 200),
    mlx5("mlx5-cx7", 0x1021, 400),
    infiniband(mlx5("mlx5-ib", 0x1021, 400)),
    infiniband(mlx5("mlx5-xdr", 0x1023, 800), true),
    bnxt_re(),
    irdma(),
    ionic(),
    mana(),
    erdma(),
    hns(),
    rxe(),
};

}  // namespace

const Personality& own_personality() { return kOwn; }

std::span<const Personality> personalities() { return kTable; }

const Personality* find_personality(std::string_view name) {
  const auto at = std::find_if(kTable.begin(), kTable.end(),
                               [name](const Personality& p) { return p.name == name; });
  return at != kTable.end() ? &*at : nullptr;
}

GidKind gid_kind(const Personality& p, int index) {
  switch (p.ports.gids) {
    case Gids::v2:
      return {index < 2, index == 1, 2};
    case Gids::v1_and_v2:
      return {index < 4, index >= 2, index % 2 + 1};
    case Gids::infiniband:
      return {index == 0, false, 0};
  }
  return {};
}

}  // namespace twinpath::soft
