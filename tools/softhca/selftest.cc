// softhca-selftest: what programs from Debian do not exercise, through libibverbs' public calls and
// linked to the facade: ibv_wr_*, extended queries, both sizes of the port attributes, and that
// everything not modelled answers EOPNOTSUPP.  Needs one adapter; prints a line a case.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "tools/softhca/selftest_cases.h"
#include "tools/softhca/selftest_pair.h"

namespace {

using twinpath::softhca::failures;
using twinpath::softhca::kPairAccess;
using twinpath::softhca::Pair;
using twinpath::softhca::run;

void next(ibv_qp_ex* q, std::uint64_t id) {
  q->wr_id = id;
  q->wr_flags = IBV_SEND_SIGNALED;
}

// What test/fabric/conformance does not try: inline data from two buffers, behind a list in one
// chain; data without a request.
void work_requests(ibv_context* context) {
  Pair p(context);
  EXPECT(p.make());
  ibv_qp_ex* const q = p.sender;
  std::strcpy(p.here, "write");
  p.receive(100);
  ibv_wr_start(q);
  next(q, 1);
  ibv_wr_rdma_write(q, p.mr->rkey, p.remote());
  ibv_sge list[2] = {{p.local(), 2, p.mr->lkey}, {p.local() + 2, 4, p.mr->lkey}};
  ibv_wr_set_sge_list(q, 2, list);
  next(q, 2);
  ibv_wr_rdma_write_imm(q, p.mr->rkey, p.remote() + 64, 0x01020304);
  char first[] = "in", second[] = "line";
  const ibv_data_buf buffers[2] = {{first, 2}, {second, 5}};
  ibv_wr_set_inline_data_list(q, 2, buffers);
  EXPECT(ibv_wr_complete(q) == 0);
  std::memset(first, 0, sizeof first);  // inline data is the caller's again
  for (int i = 0; i < 3; ++i) {
    const ibv_wc wc = p.completion();
    EXPECT(wc.status == IBV_WC_SUCCESS);
    if (wc.wr_id == 100) EXPECT(wc.imm_data == 0x01020304 && wc.byte_len == 7);
  }
  EXPECT(std::strcmp(p.there, "write") == 0 && std::strcmp(p.there + 64, "inline") == 0);
  // Refused at the end, and the next chain is clean.
  ibv_wr_start(q);
  ibv_wr_set_sge(q, p.mr->lkey, p.local(), 8);
  EXPECT(ibv_wr_complete(q) == EINVAL);
  ibv_wr_start(q);
  EXPECT(ibv_wr_complete(q) == 0);
}

// Through the handle of a parent domain everything works as through its protection domain.
void parent_domains(ibv_context* context) {
  Pair p(context);
  EXPECT(p.make(true));
  EXPECT(p.domain != nullptr && p.pd != p.domain);
  EXPECT(ibv_dealloc_pd(p.domain) == EBUSY);
  std::strcpy(p.here, "parent");
  p.receive(1);
  ibv_wr_start(p.sender);
  next(p.sender, 2);
  ibv_wr_rdma_write_imm(p.sender, p.mr->rkey, p.remote(), 5);
  ibv_wr_set_sge(p.sender, p.mr->lkey, p.local(), 7);
  EXPECT(ibv_wr_complete(p.sender) == 0);
  for (int i = 0; i < 2; ++i) EXPECT(p.completion().status == IBV_WC_SUCCESS);
  EXPECT(std::strcmp(p.there, "parent") == 0);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  ibv_srq* const srq = ibv_create_srq(p.pd, &srq_attr);
  EXPECT(srq != nullptr && ibv_destroy_srq(srq) == 0);
  ibv_qp_init_attr plain{};
  plain.send_cq = plain.recv_cq = p.cq;
  plain.cap = {1, 1, 1, 1, 0};
  plain.qp_type = IBV_QPT_RC;
  ibv_qp* const qp = ibv_create_qp(p.pd, &plain);
  EXPECT(qp != nullptr && ibv_destroy_qp(qp) == 0);

  ibv_parent_domain_init_attr attr{};
  EXPECT(ibv_alloc_parent_domain(context, &attr) == nullptr && errno == EINVAL);
  attr.pd = p.pd;
  attr.comp_mask = 1u << 30;
  EXPECT(ibv_alloc_parent_domain(context, &attr) == nullptr && errno == EINVAL);
  attr.comp_mask = 0;  // one on another is one on its protection domain
  ibv_pd* const second = ibv_alloc_parent_domain(context, &attr);
  EXPECT(second != nullptr && ibv_dealloc_pd(second) == 0);
  EXPECT(ibv_dealloc_pd(p.domain) == EBUSY);
}

void address_handles(ibv_context* context) {
  Pair p(context);
  EXPECT(p.make());
  ibv_port_attr port{};
  EXPECT(ibv_query_port(context, 1, &port) == 0);
  ibv_ah_attr attr{};
  attr.port_num = 1;
  ibv_ah* const local = ibv_create_ah(p.pd, &attr);
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    EXPECT(local == nullptr && errno == EINVAL);  // no GID, no address
  } else {
    EXPECT(local != nullptr && ibv_destroy_ah(local) == 0);
  }
  attr.is_global = 1;
  EXPECT(ibv_query_gid(context, 1, 1, &attr.grh.dgid) == 0);
  ibv_ah* const handle = ibv_create_ah(p.pd, &attr);
  EXPECT(handle != nullptr && ibv_destroy_ah(handle) == 0);
  attr.grh.sgid_index = 200;
  EXPECT(ibv_create_ah(p.pd, &attr) == nullptr && errno == EINVAL);
  attr.grh.sgid_index = 0;
  attr.port_num = 100;
  EXPECT(ibv_create_ah(p.pd, &attr) == nullptr && errno == EINVAL);
}

// Newer than what NCCL may find here: it asks for the speed in another way then.
void absent() {
  EXPECT(dlvsym(RTLD_DEFAULT, "ibv_query_port_speed", "IBVERBS_1.16") == nullptr);
  EXPECT(dlsym(RTLD_DEFAULT, "ibv_query_port_speed") == nullptr);
}

void queries(ibv_context* context) {
  ibv_device_attr_ex device{};
  EXPECT(ibv_query_device_ex(context, nullptr, &device) == 0);
  EXPECT(device.orig_attr.phys_port_cnt >= 1 && device.orig_attr.max_qp > 0);
  EXPECT(device.odp_caps.general_caps == 0 && device.completion_timestamp_mask == 0);

  ibv_port_attr port{};
  EXPECT(ibv_query_port(context, 1, &port) == 0);
  EXPECT(port.state == IBV_PORT_ACTIVE || port.state == IBV_PORT_DOWN);
  EXPECT(ibv_query_port(context, 200, &port) == EINVAL);
  // The exported call writes the old structure and nothing behind it.
  using Old = int (*)(ibv_context*, std::uint8_t, void*);
  const auto old = reinterpret_cast<Old>(dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1"));
  EXPECT(old != nullptr);
  unsigned char bytes[sizeof(ibv_port_attr) + 8];
  std::memset(bytes, 0xa5, sizeof bytes);
  EXPECT(old(context, 1, bytes) == 0);
  for (std::size_t i = offsetof(ibv_port_attr, port_cap_flags2); i < sizeof bytes; ++i)
    EXPECT(bytes[i] == 0xa5);
  ibv_port_attr copy{};
  std::memcpy(static_cast<void*>(&copy), bytes, offsetof(ibv_port_attr, port_cap_flags2));
  EXPECT(ibv_query_port(context, 1, &port) == 0);
  EXPECT(copy.gid_tbl_len == port.gid_tbl_len && copy.link_layer == port.link_layer);

  ibv_gid_entry entries[64];
  const ssize_t found = ibv_query_gid_table(context, entries, 64, 0);
  EXPECT(found == port.gid_tbl_len * device.orig_attr.phys_port_cnt);
  for (ssize_t i = 0; i < found; ++i) {
    ibv_gid_entry one;
    ibv_gid gid;
    const auto number = static_cast<std::uint8_t>(entries[i].port_num);
    EXPECT(ibv_query_gid_ex(context, number, entries[i].gid_index, &one, 0) == 0);
    EXPECT(ibv_query_gid(context, number, static_cast<int>(entries[i].gid_index), &gid) == 0);
    EXPECT(std::memcmp(&gid, &one.gid, sizeof gid) == 0 && one.gid_type == entries[i].gid_type);
  }
  EXPECT(ibv_query_gid_ex(context, 1, 1000, entries, 0) == EINVAL);
  __be16 pkey = 0;
  EXPECT(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
  EXPECT(ibv_get_pkey_index(context, 1, pkey) == 0);
  EXPECT(ibv_rate_to_mbps(mbps_to_ibv_rate(103125)) == 103125);
  EXPECT(mult_to_ibv_rate(ibv_rate_to_mult(IBV_RATE_40_GBPS)) == IBV_RATE_40_GBPS);
}

void not_modelled(ibv_context* context) {
  Pair p(context);
  EXPECT(p.make());
#define REFUSED(call)            \
  do {                           \
    errno = 0;                   \
    EXPECT((call) == nullptr);   \
    EXPECT(errno == EOPNOTSUPP); \
  } while (0)
  ibv_cq_init_attr_ex cq{};
  cq.cqe = 8;
  REFUSED(ibv_create_cq_ex(context, &cq));
  for (const ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET}) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = p.cq;
    attr.cap = {1, 1, 1, 1, 0};
    attr.qp_type = type;
    REFUSED(ibv_create_qp(p.pd, &attr));
  }
  REFUSED(ibv_alloc_mw(p.pd, IBV_MW_TYPE_1));
  ibv_xrcd_init_attr xrcd{};
  REFUSED(ibv_open_xrcd(context, &xrcd));
  ibv_td_init_attr td{};
  REFUSED(ibv_alloc_td(context, &td));
  ibv_alloc_dm_attr dm{};
  REFUSED(ibv_alloc_dm(context, &dm));
  REFUSED(ibv_alloc_null_mr(p.pd));
  ibv_wq_init_attr wq{};
  REFUSED(ibv_create_wq(context, &wq));
  ibv_counters_init_attr counters{};
  REFUSED(ibv_create_counters(context, &counters));
  ibv_flow_attr flow{};
  REFUSED(ibv_create_flow(p.qp[0], &flow));
  REFUSED(ibv_import_device(0));
  REFUSED(ibv_reg_mr(p.pd, p.here, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
  // CUDA memory is found by its address, so that addresses cannot begin at 0.
  const int file = ::memfd_create("some", MFD_CLOEXEC);
  EXPECT(file >= 0 && ::ftruncate(file, 4096) == 0);
  REFUSED(ibv_reg_dmabuf_mr(p.pd, 0, 64, 0, file, kPairAccess));
  errno = 0;
  EXPECT(ibv_reg_dmabuf_mr(p.pd, 0, 64, 1, file, kPairAccess) == nullptr && errno == EINVAL);
  ::close(file);
  errno = 0;  // dma-bufs are known: it is this one that does not exist
  EXPECT(ibv_reg_dmabuf_mr(p.pd, 0, 64, 0, -1, kPairAccess) == nullptr && errno == EBADF);
  ibv_ece ece{};
  EXPECT(ibv_query_ece(p.qp[0], &ece) == EOPNOTSUPP && ibv_set_ece(p.qp[0], &ece) == EOPNOTSUPP);
  ibv_gid gid{};
  EXPECT(ibv_attach_mcast(p.qp[0], &gid, 0) == EOPNOTSUPP);
  EXPECT(ibv_advise_mr(p.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, nullptr, 0) == EOPNOTSUPP);
  ibv_values_ex values{};
  EXPECT(ibv_query_rt_values_ex(context, &values) == EOPNOTSUPP);
  ibv_modify_cq_attr moderation{};
  EXPECT(ibv_modify_cq(p.cq, &moderation) == EOPNOTSUPP);
  EXPECT(ibv_rereg_mr(p.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) ==
         IBV_REREG_MR_ERR_INPUT);
}

}  // namespace

int main() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  ibv_context* const context = count > 0 ? ibv_open_device(list[0]) : nullptr;
  if (context == nullptr) {
    std::printf("FAILED: opening an adapter: %d shown\n", count);
    return 1;
  }
  ibv_free_device_list(list);
  run("ibv_wr_* calls", [&] { work_requests(context); });
  run("parent domains", [&] { parent_domains(context); });
  run("address handles", [&] { address_handles(context); });
  run("what must be absent is", [&] { absent(); });
  run("extended queries", [&] { queries(context); });
  run("what is not modelled answers EOPNOTSUPP", [&] { not_modelled(context); });
  run("closing", [&] { EXPECT(ibv_close_device(context) == 0); });
  return failures == 0 ? 0 : 1;
}
