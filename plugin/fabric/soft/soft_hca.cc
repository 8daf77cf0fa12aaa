// Fills the verbs table with the software adapter: devices, contexts, events.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {
namespace soft {
namespace {

struct EventRecord {
  ibv_event_type type;
  std::uint32_t qp_num;
  ibv_qp* qp;
};

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
                       (std::uint64_t{device->hca->job_hash()} << 16) |
                       static_cast<std::uint64_t>(device->index + 1);
  return __builtin_bswap64(guid);
}

ibv_context* open_device(ibv_device* d) {
  auto context = std::make_unique<SoftContext>();
  static_cast<ibv_context&>(*context) = ibv_context{};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return nullptr;
  context->events_in = UniqueFd(ends[1]);
  context->device = d;
  context->soft_device = static_cast<SoftDevice*>(d);
  context->hca = context->soft_device->hca;
  context->cmd_fd = -1;
  context->async_fd = ends[0];
  context->num_comp_vectors = 1;
  context->abi_compat = nullptr;  // verbs.h then never takes us for an extended context
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  // A user waits for events by reading: let that block, as with a kernel device.
  fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) & ~O_NONBLOCK);
  return context.release();
}

int close_device(ibv_context* c) {
  auto* context = static_cast<SoftContext*>(c);
  ::close(context->async_fd);
  delete context;
  return 0;
}

int query_device(ibv_context* c, ibv_device_attr* a) {
  auto& device = *static_cast<SoftContext*>(c)->soft_device;
  *a = {};
  std::snprintf(a->fw_ver, sizeof a->fw_ver, "%s", TWINPATH_VERSION);
  a->node_guid = a->sys_image_guid = get_device_guid(&device);
  a->max_mr_size = ~std::uint64_t{0};
  a->page_size_cap = 4096;
  a->max_qp = static_cast<int>(kQpsPerProcess - 16);
  a->max_qp_wr = static_cast<int>(kMaxWr);
  a->max_sge = a->max_sge_rd = kMaxSge;
  a->max_cq = 65536;
  a->max_cqe = kMaxCqe;
  a->max_mr = static_cast<int>(kKeyEntries - 1);
  a->max_pd = 65536;
  a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
  a->max_res_rd_atom = 1 << 20;
  a->atomic_cap = IBV_ATOMIC_HCA;
  a->max_pkeys = 1;
  a->phys_port_cnt = static_cast<std::uint8_t>(device.spec.ports);
  return 0;
}

ibv_mtu mtu_code(int bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

// The speed and width codes whose product comes nearest to the wanted rate from above; the
// encodings of the IB specification know no other rates.
void speed_codes(int gbps, ibv_port_attr& a) {
  struct Code {
    std::uint8_t speed;
    int lane_gbps;
  };
  constexpr Code kSpeeds[] = {{1, 2}, {2, 5}, {4, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  constexpr std::pair<std::uint8_t, int> kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}};
  int best = 1 << 30;
  a.active_speed = 128;
  a.active_width = 8;
  for (auto [speed, lane] : kSpeeds) {
    for (auto [width, lanes] : kWidths) {
      int rate = lane * lanes;
      if (rate >= gbps && rate < best) {
        best = rate;
        a.active_speed = speed;
        a.active_width = width;
      }
    }
  }
}

int query_port(ibv_context* c, std::uint8_t port, ibv_port_attr* a) {
  auto& device = *static_cast<SoftContext*>(c)->soft_device;
  if (port < 1 || port > device.spec.ports) return EINVAL;
  *a = {};
  a->state = device.spec.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a->phys_state = device.spec.up ? 5 : 3;  // LinkUp, Disabled
  a->max_mtu = IBV_MTU_4096;
  a->active_mtu = mtu_code(device.spec.mtu);
  a->gid_tbl_len = kGidEntries;
  a->pkey_tbl_len = 1;
  a->max_msg_sz = 1u << 30;
  a->link_layer = IBV_LINK_LAYER_ETHERNET;
  speed_codes(device.spec.speed_gbps, *a);
  return 0;
}

int query_gid(ibv_context* c, std::uint8_t port, int index, ibv_gid* gid) {
  auto* context = static_cast<SoftContext*>(c);
  if (port < 1 || port > context->soft_device->spec.ports || index < 0 || index >= kGidEntries) {
    errno = EINVAL;
    return -1;
  }
  *gid = context->hca->gid(*context->soft_device, port, index);
  return 0;
}

int get_async_event(ibv_context* c, ibv_async_event* event) {
  EventRecord r{};
  ssize_t n = read(c->async_fd, &r, sizeof r);
  if (n != static_cast<ssize_t>(sizeof r)) {
    if (n >= 0) errno = EIO;
    return -1;
  }
  *event = {};
  event->event_type = r.type;
  event->element.qp = r.qp;
  return 0;
}

void ack_async_event(ibv_async_event*) {}

const char* event_type_str(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
      return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "local access violation work queue error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    default:
      return "event";
  }
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

void fill(Verbs& t) {
  t = {};
  t.get_device_list = get_device_list;
  t.free_device_list = free_device_list;
  t.get_device_guid = get_device_guid;
  t.open_device = open_device;
  t.close_device = close_device;
  t.query_device = query_device;
  t.query_port = query_port;
  t.query_gid = query_gid;
  t.alloc_pd = alloc_pd;
  t.dealloc_pd = dealloc_pd;
  t.reg_mr_iova2 = reg_mr_iova2;
  t.reg_dmabuf_mr = reg_dmabuf_mr;
  t.dereg_mr = dereg_mr;
  t.create_cq = create_cq;
  t.destroy_cq = destroy_cq;
  t.create_qp = create_qp;
  t.modify_qp = modify_qp;
  t.query_qp = query_qp;
  t.destroy_qp = destroy_qp;
  t.get_async_event = get_async_event;
  t.ack_async_event = ack_async_event;
  t.event_type_str = event_type_str;
  t.wc_status_str = wc_status_str;
}

}  // namespace

void async_event(SoftQp& qp, ibv_event_type type) {
  EventRecord r{type, qp.qp_num, &qp};
  // A full pipe means that nobody has read thousands of events: dropping is all that is left.
  (void)!write(qp.soft_context->events_in.get(), &r, sizeof r);
}

}  // namespace soft

bool load_soft_hca(Verbs& table, const Config& config, std::string& why_not) {
  auto hca = soft::Hca::instance(config, why_not);
  if (!hca || !(*hca)->set_devices(config.soft_hcas, why_not)) return false;
  soft::fill(table);
  return true;
}

}  // namespace twinpath
