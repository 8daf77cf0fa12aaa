// Devices, transitions, requests and waits of endpoint.h.
#include "test/fabric/conformance/endpoint.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace twinpath::conformance {

std::string device_name(int which) {
  if (const char* names = std::getenv("TWINPATH_CONFORMANCE_DEVICES"); names != nullptr) {
    const std::string text = names;
    const std::size_t comma = text.find(',');
    REQUIRE(comma != std::string::npos);
    return which == 0 ? text.substr(0, comma) : text.substr(comma + 1);
  }
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  INFO("the behaviours need two RDMA devices, see test/fabric/conformance/README.md");
  REQUIRE(list != nullptr);
  std::string name = which < n ? ibv_get_device_name(list[which]) : "";
  ibv_free_device_list(list);
  REQUIRE(!name.empty());
  return name;
}

namespace {

ibv_port_attr port_of(ibv_context* context) {
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(context, kPort, &port) == 0);
  return port;
}

}  // namespace

bool is_infiniband(ibv_context* context) {
  return port_of(context).link_layer == IBV_LINK_LAYER_INFINIBAND;
}

int gid_index(ibv_context* context) {
  if (is_infiniband(context)) return 0;
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  for (int i = 0; i < port_of(context).gid_tbl_len; ++i) {
    ibv_gid_entry e{};
    if (ibv_query_gid_ex(context, kPort, static_cast<std::uint32_t>(i), &e, 0) == 0 &&
        e.gid_type == IBV_GID_TYPE_ROCE_V2 && std::memcmp(e.gid.raw, kMapped, sizeof kMapped) == 0)
      return i;
  }
  FAIL("no RoCE v2 GID with an IPv4-mapped address");
  return 0;
}

Context open_device(int which) {
  const std::string name = device_name(which);
  ibv_context* context = nullptr;
  ibv_device** list = ibv_get_device_list(nullptr);
  REQUIRE(list != nullptr);
  for (ibv_device** d = list; *d != nullptr && context == nullptr; ++d) {
    if (name == ibv_get_device_name(*d)) context = ibv_open_device(*d);
  }
  ibv_free_device_list(list);
  INFO("device " << name << " is not there or cannot be opened");
  REQUIRE(context != nullptr);
  return Context(context);
}

ibv_qp_attr init_attributes(const Options& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = kPort;
  a.qp_access_flags = o.qp_access;
  return a;
}

ibv_qp_attr rts_attributes(const Options& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = o.sq_psn;
  a.timeout = o.timeout;
  a.retry_cnt = o.retry_cnt;
  a.rnr_retry = o.rnr_retry;
  a.max_rd_atomic = o.rd_atomic;
  return a;
}

int modify(ibv_qp* qp, ibv_qp_attr attributes, int mask) {
  return ibv_modify_qp(qp, &attributes, mask);
}

int to_state(ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr a{};
  a.qp_state = state;
  return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(qp, &a, IBV_QP_STATE, &init) == 0);
  return a.qp_state;
}

int post(ibv_qp* qp, Wr& w) {
  const bool own = w.wr.sg_list == nullptr;
  if (own) w.wr.sg_list = &w.sge;
  ibv_send_wr* bad = nullptr;
  const int rc = ibv_post_send(qp, &w.wr, &bad);
  if (own) w.wr.sg_list = nullptr;
  return rc;
}

int post_receive(ibv_qp* qp, ibv_sge sge, std::uint64_t id, int num_sge) {
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = num_sge;
  return ibv_post_recv(qp, &wr, &bad);
}

ibv_wc wait(ibv_cq* cq) {
  ibv_wc wc{};
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    const int n = ibv_poll_cq(cq, 1, &wc);
    REQUIRE(n >= 0);
    if (n == 1) return wc;
  }
  FAIL("no completion within the time limit");
  return wc;
}

bool quiet(ibv_cq* cq, milliseconds time) {
  ibv_wc wc{};
  const auto end = Clock::now() + time;
  do {
    if (ibv_poll_cq(cq, 1, &wc) != 0) return false;
  } while (Clock::now() < end);
  return true;
}

bool readable(int fd, milliseconds time) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, static_cast<int>(time.count())) == 1;
}

std::optional<ibv_async_event> next_event(ibv_context* context, milliseconds time) {
  if (!readable(context->async_fd, time)) return std::nullopt;
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(context, &event) == 0);
  ibv_ack_async_event(&event);
  return event;
}

std::optional<ibv_async_event> wait_event(ibv_context* context, ibv_event_type type,
                                          milliseconds time) {
  const auto end = Clock::now() + time;
  for (auto left = time; left.count() >= 0;
       left = std::chrono::duration_cast<milliseconds>(end - Clock::now())) {
    auto event = next_event(context, left);
    if (!event || event->event_type == type) return event;
  }
  return std::nullopt;
}

Endpoint::Endpoint(int device, const Options& o)
    : options(o), context(open_device(device)), buffer(o.bytes) {
  REQUIRE(ibv_query_device(context.get(), &limits) == 0);
  if (limits.atomic_cap == IBV_ATOMIC_NONE) all_rights &= ~unsigned{IBV_ACCESS_REMOTE_ATOMIC};
  for (std::uint32_t* sges : {&options.cap.max_send_sge, &options.cap.max_recv_sge})
    *sges = std::min(*sges, static_cast<std::uint32_t>(limits.max_sge));
  pd.reset(ibv_alloc_pd(context.get()));
  REQUIRE(pd != nullptr);
  mr = make_mr(o.mr_access & all_rights, 0, o.bytes);
  REQUIRE(mr != nullptr);
  if (o.channel) {
    channel.reset(ibv_create_comp_channel(context.get()));
    REQUIRE(channel != nullptr);
  }
  cq.reset(ibv_create_cq(context.get(), o.cqe, this, channel.get(), 0));
  REQUIRE(cq != nullptr);
  if (o.srq) {
    ibv_srq_init_attr a{};
    a.attr.max_wr = 32;
    a.attr.max_sge = 4;
    srq.reset(ibv_create_srq(pd.get(), &a));
    REQUIRE(srq != nullptr);
  }
  qp = make_qp();
  REQUIRE(qp != nullptr);
  infiniband = is_infiniband(context.get());
  sgid_index = gid_index(context.get());
  REQUIRE(ibv_query_gid(context.get(), kPort, sgid_index, &gid) == 0);
  lid = port_of(context.get()).lid;
}

ibv_qp_attr Endpoint::rtr_attributes(std::uint32_t peer_qpn, const Endpoint& peer) const {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = options.mtu;
  a.dest_qp_num = peer_qpn;
  a.rq_psn = options.rq_psn;
  a.max_dest_rd_atomic = options.rd_atomic;
  a.min_rnr_timer = options.min_rnr_timer;
  a.ah_attr.port_num = kPort;
  a.ah_attr.dlid = peer.lid;
  a.ah_attr.is_global = infiniband ? 0 : 1;
  a.ah_attr.grh.dgid = peer.gid;
  a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(sgid_index);
  a.ah_attr.grh.hop_limit = 64;
  return a;
}

ibv_qp_init_attr Endpoint::qp_attributes() const {
  ibv_qp_init_attr a{};
  a.send_cq = a.recv_cq = cq.get();
  a.srq = srq.get();
  a.cap = options.cap;
  a.qp_type = IBV_QPT_RC;
  a.sq_sig_all = options.signal_all ? 1 : 0;
  return a;
}

Qp Endpoint::make_qp(ibv_qp_init_attr a) const { return Qp(ibv_create_qp(pd.get(), &a)); }

Cq Endpoint::make_cq(int cqe) const {
  return Cq(ibv_create_cq(context.get(), cqe, nullptr, nullptr, 0));
}

Mr Endpoint::make_mr(unsigned access, std::size_t at, std::size_t bytes) {
  return Mr(ibv_reg_mr(pd.get(), buffer.data() + at, bytes, access));
}

void Endpoint::fill(std::size_t at, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i)
    buffer[at + i] = static_cast<std::uint8_t>(i * 13 + (i >> 8) + seed);
}

void connect_asker(Endpoint& a, ibv_qp* qa, Endpoint& b, ibv_qp* qb) {
  REQUIRE(a.init(qa) == 0);
  REQUIRE(b.init(qb) == 0);
  REQUIRE(a.rtr(qa, qb->qp_num, b) == 0);
  REQUIRE(b.rtr(qb, qa->qp_num, a) == 0);
  REQUIRE(a.rts(qa) == 0);
}

void connect(Endpoint& a, ibv_qp* qa, Endpoint& b, ibv_qp* qb) {
  connect_asker(a, qa, b, qb);
  REQUIRE(b.rts(qb) == 0);
}

Pair::Pair(const Options& oa, const Options& ob) : a(0, oa), b(1, ob) {
  connect(a, a.qp.get(), b, b.qp.get());
}

Wr Pair::request(ibv_wr_opcode opcode, std::uint32_t bytes, std::size_t at, std::size_t to) {
  Wr w;
  w.sge = a.sge(at, bytes);
  w.wr.wr_id = 77;
  w.wr.num_sge = bytes != 0 ? 1 : 0;
  w.wr.opcode = opcode;
  w.wr.send_flags = IBV_SEND_SIGNALED;
  w.wr.wr.rdma.remote_addr = b.address(to);
  w.wr.wr.rdma.rkey = b.mr->rkey;
  return w;
}

Wr Pair::add(std::uint64_t value, std::size_t at, std::size_t to) {
  Wr w = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, at);
  w.wr.wr.atomic = {b.address(to), value, 0, b.mr->rkey};
  return w;
}

Wr Pair::swap(std::uint64_t expected, std::uint64_t value, std::size_t at, std::size_t to) {
  Wr w = request(IBV_WR_ATOMIC_CMP_AND_SWP, 8, at);
  w.wr.wr.atomic = {b.address(to), expected, value, b.mr->rkey};
  return w;
}

ibv_wc Pair::run(Wr w) {
  REQUIRE(post(w) == 0);
  return wait(a.cq.get());
}

bool Pair::without_atomics() {
  if (a.limits.atomic_cap != IBV_ATOMIC_NONE) return false;
  for (Wr w : {add(1), swap(0, 1)}) CHECK(post(w) == posting_error(EINVAL));
  return true;
}

bool Pair::without_sges(Endpoint& e, std::uint32_t n) {
  if (e.limits.max_sge >= static_cast<int>(n)) return false;
  std::vector<ibv_sge> list(n, e.sge(0, 1));
  Wr w = write(1);
  w.wr.sg_list = list.data();
  w.wr.num_sge = static_cast<int>(n);
  CHECK(conformance::post(e.qp.get(), w) == posting_error(EINVAL));
  ibv_recv_wr r{}, *bad = nullptr;
  r.sg_list = list.data();
  r.num_sge = w.wr.num_sge;
  CHECK(ibv_post_recv(e.qp.get(), &r, &bad) == posting_error(EINVAL));
  return true;
}

bool Pair::same(std::size_t bytes, std::size_t at, std::size_t to) const {
  return std::memcmp(a.buffer.data() + at, b.buffer.data() + to, bytes) == 0;
}

}  // namespace twinpath::conformance
