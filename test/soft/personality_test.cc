// Adapters like others' (like=): each rule of the table, as a program meets it.
#include <cerrno>
#include <fstream>
#include <sstream>

#include "plugin/base/owned.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/like.h"
#include "plugin/fabric/soft/personality.h"
#include "plugin/fabric/verbs.h"
#include "test/support/catch.h"

using namespace twinpath;
using soft::Gids;
using soft::InlineLimit;
using soft::Personality;

namespace {

constexpr int kUntouched = 7777;  // no errno value

// One adapter of a kind, with a queue pair that is joined to another of its own.
struct Adapter {
  const Personality& like;
  Verbs verbs;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(512);

  explicit Adapter(const Personality& p) : like(p) {
    Config config;
    config.soft_hcas = "soft3,like=" + std::string(p.name);
    std::string why;
    REQUIRE(load_soft_hca(verbs, config, why));
    ibv_device** list = verbs.get_device_list(nullptr);
    CHECK(list[0]->name == std::string(p.device) + "3");
    context = verbs.open_device(list[0]);
    verbs.free_device_list(list);
    REQUIRE(context != nullptr);
    pd = verbs.alloc_pd(context);
    cq = verbs.create_cq(context, 64, nullptr, nullptr, 0);
    REQUIRE(cq != nullptr);
  }
  ~Adapter() {
    verbs.destroy_cq(cq);
    verbs.dealloc_pd(pd);
    verbs.close_device(context);
  }
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  Owned<ibv_qp> make_qp(ibv_qp_cap& cap) const {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.qp_type = IBV_QPT_RC;
    a.cap = cap;
    errno = kUntouched;
    auto qp = own(verbs.create_qp(pd, &a), verbs.destroy_qp);
    cap = a.cap;
    return qp;
  }
  // Null, with the device's errno.
  void refused(ibv_qp_cap cap) const {
    CHECK(make_qp(cap) == nullptr);
    CHECK(errno == (like.refusal != 0 ? like.refusal : kUntouched));
  }
  Owned<ibv_mr> register_memory(unsigned access) {
    errno = kUntouched;
    return own(verbs.reg_mr_iova2(pd, memory.data(), memory.size() * sizeof memory[0],
                                  reinterpret_cast<std::uint64_t>(memory.data()), access),
               verbs.dereg_mr);
  }
  ibv_port_attr port() const {
    ibv_port_attr a{};
    REQUIRE(verbs.query_port(context, 1, &a) == 0);
    return a;
  }
  ibv_device_attr device() const {
    ibv_device_attr a{};
    REQUIRE(verbs.query_device(context, &a) == 0);
    return a;
  }
  int gids() const {
    int used = 0;
    while (soft::gid_kind(like, used).used) ++used;
    return used;
  }
  // INIT to RTS, to the queue pair `to`.
  void raise(ibv_qp* qp, std::uint32_t to) const {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    REQUIRE(verbs.modify_qp(
                qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = to;
    a.max_dest_rd_atomic = like.reads_in;
    a.ah_attr.port_num = 1;
    if (like.infiniband) {
      a.ah_attr.dlid = port().lid;
    } else {
      a.ah_attr.is_global = 1;
      a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gids() - 1);
      REQUIRE(verbs.query_gid(context, 1, gids() - 1, &a.ah_attr.grh.dgid) == 0);
    }
    REQUIRE(verbs.modify_qp(qp, &a,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
            0);
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = like.reads_out;
    REQUIRE(verbs.modify_qp(qp, &a,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
  ibv_wc_status next() const {
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
    }
    return wc.status;
  }
};

struct Joined {
  Adapter adapter;
  Owned<ibv_mr> mr;
  Owned<ibv_qp> a, b;
  ibv_sge sge{};
  ibv_send_wr wr{};

  explicit Joined(const Personality& p) : adapter(p) {
    mr = adapter.register_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    REQUIRE(mr != nullptr);
    ibv_qp_cap cap{16, 16, 1, 1, 16};
    a = adapter.make_qp(cap);
    b = adapter.make_qp(cap);
    REQUIRE(a != nullptr);
    REQUIRE(b != nullptr);
    adapter.raise(a.get(), b->qp_num);
    adapter.raise(b.get(), a->qp_num);
    sge = {reinterpret_cast<std::uint64_t>(adapter.memory.data()), 8, mr->lkey};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {sge.addr + 64, mr->rkey};
  }
  int post() {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(a.get(), &wr, &bad);
  }
  int post_receive() {
    ibv_recv_wr receive{}, *bad = nullptr;
    return ibv_post_recv(a.get(), &receive, &bad);
  }
  int result(int error) const { return adapter.like.negative ? -error : error; }
};

const Personality& any() {
  const std::span<const Personality> all = soft::personalities();
  const std::size_t i = GENERATE_COPY(range(std::size_t{0}, all.size()));
  return all[i];
}

}  // namespace

TEST_CASE("queues up to an adapter's limits are made, and beyond them refused its way", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const auto most = [&] { return ibv_qp_cap{64, 64, p.max_send_sge, p.max_recv_sge, 0}; };
  ibv_qp_cap cap = most();
  CHECK(adapter.make_qp(cap) != nullptr);
  for (std::uint32_t ibv_qp_cap::*which : {&ibv_qp_cap::max_send_sge, &ibv_qp_cap::max_recv_sge}) {
    cap = most();
    ++(cap.*which);
    adapter.refused(cap);
  }
  for (std::uint32_t ibv_qp_cap::*which : {&ibv_qp_cap::max_send_wr, &ibv_qp_cap::max_recv_wr}) {
    cap = most();
    cap.*which = p.max_wr + 1;
    adapter.refused(cap);
  }
  CHECK(adapter.verbs.create_cq(adapter.context, p.max_cqe + 1, nullptr, nullptr, 0) == nullptr);
}

TEST_CASE("inline data are granted, cut or refused as by the provider", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  ibv_qp_cap cap{16, 16, 1, 1, p.max_inline};
  CHECK(adapter.make_qp(cap) != nullptr);
  CHECK(cap.max_inline_data == p.max_inline);
  cap.max_inline_data = p.max_inline + 1;
  if (p.inline_limit == InlineLimit::refuse) return adapter.refused(cap);
  CHECK(adapter.make_qp(cap) != nullptr);
  CHECK(cap.max_inline_data == p.max_inline + (p.inline_limit == InlineLimit::ignore ? 1 : 0));
}

TEST_CASE("inline data need no key where the provider honours them", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  Joined j(p);
  j.adapter.memory[0] = 42;
  j.sge.lkey = 0;
  j.wr.send_flags |= IBV_SEND_INLINE;
  REQUIRE(j.post() == 0);
  const bool honoured = p.inline_limit != InlineLimit::ignore;
  CHECK(j.adapter.next() == (honoured ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
  CHECK((j.adapter.memory[8] == 42) == honoured);
}

TEST_CASE("atomics are posted only where the adapter has them", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  Joined j(p);
  CHECK(j.adapter.device().atomic_cap == p.atomics);
  j.wr.wr.atomic.remote_addr = j.sge.addr + 64;
  j.wr.wr.atomic.rkey = j.mr->rkey;
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    j.wr.opcode = opcode;
    if (p.atomics == IBV_ATOMIC_NONE) {
      CHECK(j.post() == j.result(EINVAL));
      continue;
    }
    CHECK(j.post() == 0);
    (void)j.adapter.next();  // without the right to: the pair is in error now
    break;
  }
}

TEST_CASE("a queue pair in error flushes what is posted, or takes nothing", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  Joined j(p);
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  REQUIRE(j.adapter.verbs.modify_qp(j.a.get(), &error, IBV_QP_STATE) == 0);
  CHECK(j.post() == j.result(p.post_in_error));
  CHECK(j.post_receive() == j.result(p.post_in_error));
  if (p.post_in_error != 0) return;
  CHECK(j.adapter.next() == IBV_WC_WR_FLUSH_ERR);
  CHECK(j.adapter.next() == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("memory is registered with the rights that the driver knows", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  Adapter adapter(p);
  constexpr unsigned kUsual =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  CHECK(adapter.register_memory(kUsual | IBV_ACCESS_RELAXED_ORDERING) != nullptr);
  const bool atomics = (p.access & IBV_ACCESS_REMOTE_ATOMIC) != 0;
  CHECK((adapter.register_memory(kUsual | IBV_ACCESS_REMOTE_ATOMIC) != nullptr) == atomics);
  if (!atomics) CHECK(errno == EINVAL);
  errno = 0;
  CHECK(adapter.verbs.reg_dmabuf_mr(adapter.pd, 0, 4096, 0, -1, 0) == nullptr);
  CHECK(errno == (p.dmabuf ? EBADF : EOPNOTSUPP));
  ibv_srq_init_attr srq{};
  srq.attr = {16, 1, 0};
  ibv_srq* const made = soft::create_srq(adapter.pd, &srq);
  CHECK((made != nullptr) == p.srq);
  if (made != nullptr) CHECK(soft::destroy_srq(made) == 0);
}

TEST_CASE("a port's table of GIDs is as the kernel lays it out", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const ibv_port_attr port = adapter.port();
  CHECK(port.gid_tbl_len == p.gid_entries);
  const int used = p.gids == Gids::infiniband ? 1 : p.gids == Gids::v2 ? 2 : 4;
  CHECK(adapter.gids() == used);
  for (int i = 0; i < used; ++i) {
    INFO(i);
    ibv_gid gid{};
    REQUIRE(adapter.verbs.query_gid(adapter.context, 1, i, &gid) == 0);
    CHECK((gid.raw[0] == 0xfe) == (i < (used + 1) / 2));
    const int version = soft::gid_version(adapter.verbs, adapter.context, i);
    CHECK(version == (p.gids == Gids::infiniband ? 0 : used == 2 ? 2 : i % 2 + 1));
  }
  ibv_gid gid{};
  if (p.gid_entries > used) {
    CHECK(adapter.verbs.query_gid(adapter.context, 1, used, &gid) == 0);
    CHECK((gid.global.subnet_prefix | gid.global.interface_id) == 0);
    ibv_gid_entry entry{};
    CHECK(soft::query_gid_entry(adapter.context, 1, static_cast<std::uint32_t>(used), &entry) ==
          ENODATA);
  }
  CHECK(adapter.verbs.query_gid(adapter.context, 1, p.gid_entries, &gid) != 0);
}

TEST_CASE("a port says its speed, its LID and its longest message as the driver does", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const ibv_port_attr port = adapter.port();
  CHECK(port.max_msg_sz == p.max_message);
  CHECK(port.link_layer == (p.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET));
  CHECK(port.flags == 0);
  CHECK((port.lid != 0) == (p.infiniband || p.roce_lid != 0));
  CHECK(port.active_speed <= 128);  // NDR: the old field knows no more
  CHECK(port.active_width == 2);    // 4X
  CHECK(adapter.device().vendor_id == p.vendor_id);
  CHECK(adapter.device().vendor_part_id == p.part_id);
}

TEST_CASE("options of connection establishment are the vendor's, or there are none", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Joined j(p);
  ibv_ece ece{};
  CHECK(j.adapter.verbs.query_ece(j.a.get(), &ece) == (p.ece != 0 ? 0 : EOPNOTSUPP));
  if (p.ece != 0) CHECK(ece.vendor_id == p.ece_vendor);
}

namespace {

const char* atomics_text(ibv_atomic_cap cap) {
  return cap == IBV_ATOMIC_NONE ? "none" : cap == IBV_ATOMIC_HCA ? "adapter" : "global";
}

// A row of the table in README.md.
std::string row(const Personality& p) {
  std::ostringstream out;
  const auto n = [](auto v) { return std::to_string(v); };
  out << "| " << p.name << " | " << p.device << "N | "
      << (p.inline_limit == InlineLimit::ignore ? "ignored" : n(p.max_inline)) << " | "
      << p.max_send_sge << ", " << p.max_recv_sge << ", " << p.max_read_sge << " | " << p.max_wr
      << " | " << n(p.reads_in) << ", " << n(p.reads_out) << " | " << atomics_text(p.atomics)
      << " | "
      << (p.gids == Gids::v2          ? "v2"
          : p.gids == Gids::v1_and_v2 ? "v1, v2"
                                      : "InfiniBand")
      << " | " << (p.max_message != 0 ? n(p.max_message) : "not shown") << " |";
  if (!p.srq) out << " no SRQ";
  if (!p.dmabuf) out << " no dma-buf";
  if (p.ece != 0) out << " ECE";
  if (p.xdr) out << " XDR";
  out << " |";
  return out.str();
}

}  // namespace

TEST_CASE("README.md shows the table of adapters as it is", "[like]") {
  std::ifstream file(TWINPATH_SOURCE_ROOT "/plugin/fabric/soft/README.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Personality& p : soft::personalities()) {
    INFO("wanted:\n" << row(p));
    CHECK(text.str().find(row(p) + "\n") != std::string::npos);
  }
}

TEST_CASE("suites are run over every adapter that there is", "[like]") {
  const std::string run = std::string(",") + TWINPATH_LIKES + ",";
  for (const Personality& p : soft::personalities()) {
    INFO(p.name);
    CHECK(run.find("," + std::string(p.name) + ",") != std::string::npos);
  }
}
