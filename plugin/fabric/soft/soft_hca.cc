// Fills the verbs table with the software adapter: devices, contexts, events.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/address.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/verbs.h"

namespace twinpath::soft {
namespace {

ibv_device** get_device_list(int* count) {
  Hca* hca = Hca::existing();
  auto devices = hca != nullptr ? hca->devices() : std::vector<SoftDevice*>{};
  auto** list = new ibv_device*[devices.size() + 1];
  std::size_t n = 0;
  for (SoftDevice* d : devices) list[n++] = d;
  list[n] = nullptr;
  if (count != nullptr) *count = static_cast<int>(n);
  return list;
}

void free_device_list(ibv_device** list) { delete[] list; }

__be64 get_device_guid(ibv_device* d) {
  auto* device = static_cast<SoftDevice*>(d);
  // 02: a locally administered number; the job's hash keeps hosts apart, the index devices.
  std::uint64_t guid = (std::uint64_t{0x02} << 56) |
                       (std::uint64_t{device->hca->addresses().job_hash()} << 16) |
                       static_cast<std::uint64_t>(device->index + 1);
  return __builtin_bswap64(guid);
}

ibv_context* open_device(ibv_device* d) {
  auto context = std::make_unique<SoftContext>();
  static_cast<verbs_context&>(*context) = verbs_context{};
  context->sz = sizeof(verbs_context);
  ibv_context& inner = context->context;
  if (!context->events.open()) return nullptr;
  inner.device = d;
  context->soft_device = static_cast<SoftDevice*>(d);
  context->hca = context->soft_device->hca;
  inner.cmd_fd = -1;
  inner.async_fd = context->events.fd();
  inner.num_comp_vectors = 1;
  inner.abi_compat = nullptr;  // verbs.h then does not take us for an extended context
  inner.ops.poll_cq = poll_cq;
  inner.ops.req_notify_cq = req_notify_cq;
  inner.ops.post_srq_recv = post_srq_recv;
  inner.ops.post_send = post_send;
  inner.ops.post_recv = post_recv;
  context->hca->add_context(context.get());
  return &context.release()->context;
}

int close_device(ibv_context* c) {
  SoftContext* context = soft(c);
  forget_mlx5(c);  // its queue pairs are of this context
  context->hca->remove_context(context);
  delete context;
  return 0;
}

int query_device(ibv_context* c, ibv_device_attr* a) {
  auto& device = *soft(c)->soft_device;
  const Personality& like = device.like();
  *a = {};
  std::snprintf(a->fw_ver, sizeof a->fw_ver, "%s", TWINPATH_VERSION);
  a->node_guid = a->sys_image_guid = get_device_guid(&device);
  a->max_mr_size = ~std::uint64_t{0};
  a->page_size_cap = 4096;
  a->vendor_id = like.identity.vendor_id;
  a->vendor_part_id = like.identity.part_id;
  a->max_qp = static_cast<int>(kQpsPerProcess - 16);
  a->max_qp_wr = static_cast<int>(like.queues.max_wr);
  a->device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                        IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN;
  // The kernel has two numbers, verbs one (core/uverbs_cmd.c, copy_query_dev_fields).
  a->max_sge = static_cast<int>(std::min(like.queues.max_send_sge, like.queues.max_recv_sge));
  a->max_sge_rd = static_cast<int>(like.queues.max_read_sge);
  a->max_cq = 65536;
  a->max_cqe = like.queues.max_cqe;
  a->max_mr = static_cast<int>(kKeyEntries - 1);
  a->max_pd = 65536;
  a->max_qp_rd_atom = like.queues.reads_in;
  a->max_qp_init_rd_atom = like.queues.reads_out;
  a->max_res_rd_atom = static_cast<int>(like.queues.reads_in * kQpsPerProcess);
  a->atomic_cap = like.work.atomics;
  if (like.queues.srq) {
    a->device_cap_flags |= IBV_DEVICE_SRQ_RESIZE;
    a->max_srq = 65536;
    a->max_srq_wr = static_cast<int>(like.queues.max_wr);
    a->max_srq_sge = static_cast<int>(like.queues.max_recv_sge);
  }
  a->max_pkeys = static_cast<std::uint16_t>(device.spec.pkeys.size());
  a->phys_port_cnt = static_cast<std::uint8_t>(device.spec.ports);
  return 0;
}

const char* wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local QP operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "work request flushed";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "RNR retry counter exceeded";
    default:
      return "error";
  }
}

// Ports of the plugin's own adapters say that they are Ethernet.
ibv_ah* create_ethernet_ah(ibv_pd* pd, ibv_ah_attr* attr) { return create_ah(pd, *attr, true); }

}  // namespace

void fill(Verbs& t) {
  t = {};
  t.get_device_list = get_device_list;
  t.free_device_list = free_device_list;
  t.get_device_guid = get_device_guid;
  t.open_device = open_device;
  t.close_device = close_device;
  t.query_device = query_device;
  t.query_port = query_port;
  t.port_speed = port_speed;
  t.query_gid = query_gid;
  t.query_pkey = query_pkey;
  t.alloc_pd = alloc_pd;
  t.dealloc_pd = dealloc_pd;
  t.reg_mr_iova2 = reg_mr_iova2;
  t.reg_dmabuf_mr = reg_dmabuf_mr;
  t.dereg_mr = dereg_mr;
  t.create_ah = create_ethernet_ah;
  t.destroy_ah = destroy_ah;
  t.create_comp_channel = create_comp_channel;
  t.destroy_comp_channel = destroy_comp_channel;
  t.create_cq = create_cq;
  t.destroy_cq = destroy_cq;
  t.create_qp = create_qp;
  t.modify_qp = modify_qp;
  t.query_qp = query_qp;
  t.destroy_qp = destroy_qp;
  t.query_ece = query_ece;
  t.set_ece = set_ece;
  t.get_async_event = get_async_event;
  t.ack_async_event = ack_async_event;
  t.event_type_str = event_type_str;
  t.wc_status_str = wc_status_str;
}

}  // namespace twinpath::soft
