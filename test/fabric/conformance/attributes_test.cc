// What a queue pair is made of: creation limits, the attributes a transition must bring, and what
// a query gives back (IB vol. 1, 11.2, Create, Modify and Query Queue Pair).
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

// Whether a queue pair with these attributes is refused with EINVAL.
bool invalid(const Endpoint& e, const ibv_qp_init_attr& attributes) {
  errno = 0;
  return e.make_qp(attributes) == nullptr && errno == creation_error(EINVAL);
}
ibv_qp_attr query(ibv_qp* qp, ibv_qp_init_attr* init = nullptr) {
  ibv_qp_attr a{};
  ibv_qp_init_attr own{};
  const int mask = kInitMask | kRtrMask | kRtsMask | IBV_QP_CAP;
  REQUIRE(ibv_query_qp(qp, &a, mask, init != nullptr ? init : &own) == 0);
  return a;
}
// A transition without one of `required` after the other; each must be EINVAL.
void each_missing(ibv_qp* qp, const ibv_qp_attr& a, int mask) {
  for (int bit = 1; bit <= mask; bit <<= 1) {
    if ((mask & bit) == 0 || bit == IBV_QP_STATE) continue;
    INFO("without attribute mask bit " << bit);
    CHECK(modify(qp, a, mask & ~bit) == EINVAL);
  }
}
// An endpoint in INIT, and what would take it to RTR.
struct Initialised : Endpoint {
  ibv_qp_attr next;
  Initialised() {
    REQUIRE(init(qp.get()) == 0);
    next = rtr_attributes(qp->qp_num, *this);
  }
  int go(int more = 0) { return modify(qp.get(), next, kRtrMask | more); }
};

}  // namespace

TEST_CASE("live queue pairs have different numbers of 24 bits", "[attributes]") {
  Endpoint e;
  std::vector<Qp> all;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 50; ++i) {
    all.push_back(e.make_qp());
    REQUIRE(all.back() != nullptr);
    numbers.push_back(all.back()->qp_num);
    CHECK(numbers.back() < 1u << 24);
  }
  std::sort(numbers.begin(), numbers.end());
  CHECK(std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end());
}

TEST_CASE("a queue pair grants at least the capacities asked for", "[attributes]") {
  Endpoint e;
  ibv_qp_init_attr i = e.qp_attributes();
  const auto most = static_cast<std::uint32_t>(e.limits.max_sge);
  i.cap = {33, 17, std::min(3u, most), std::min(2u, most), 40};
  const ibv_qp_cap asked = i.cap;
  const Qp qp(ibv_create_qp(e.pd.get(), &i));
  REQUIRE(qp != nullptr);
  for (const ibv_qp_cap& c : {i.cap, query(qp.get()).cap}) {
    CHECK(c.max_send_wr >= 33);
    CHECK(c.max_recv_wr >= 17);
    CHECK(c.max_send_sge >= asked.max_send_sge);
    CHECK(c.max_recv_sge >= asked.max_recv_sge);
    CHECK(c.max_inline_data >= 40);
  }
}

TEST_CASE("more send work requests than the device allows are refused", "[attributes]") {
  Endpoint e;
  ibv_qp_init_attr i = e.qp_attributes();
  i.cap.max_send_wr = static_cast<std::uint32_t>(e.limits.max_qp_wr) + 1;
  CHECK(invalid(e, i));
}

TEST_CASE("more receives than the device allows are refused", "[attributes]") {
  Endpoint e;
  ibv_qp_init_attr i = e.qp_attributes();
  const auto shown = static_cast<std::uint32_t>(e.limits.max_qp_wr);
  i.cap.max_recv_wr = shown + 1;
  CHECK(invalid(e, i) != deviates("receives-beyond-shown"));
  i = e.qp_attributes();
  i.cap.max_recv_wr = 4 * shown + 1;  // beyond what those take that show a quarter
  CHECK(invalid(e, i));
}

TEST_CASE("more SGEs than the device allows are refused", "[attributes]") {
  Endpoint e;
  ibv_qp_init_attr i = e.qp_attributes();
  // Of the limits of sends and of receives the kernel shows the smaller one.
  const auto shown = static_cast<std::uint32_t>(e.limits.max_sge);
  int refused = 0;
  for (const std::uint32_t sges : {shown + 1, shown + 1000}) {
    for (std::uint32_t ibv_qp_cap::*which :
         {&ibv_qp_cap::max_send_sge, &ibv_qp_cap::max_recv_sge}) {
      i = e.qp_attributes();
      i.cap.*which = sges;
      refused += invalid(e, i) ? 1 : 0;
    }
  }
  CHECK(refused >= (deviates("rounded-sges") ? 2 : 3));
}

TEST_CASE("more inline data than any device holds is refused", "[attributes]") {
  Endpoint e;
  ibv_qp_init_attr i = e.qp_attributes();
  i.cap.max_inline_data = 1 << 20;
  CHECK(invalid(e, i) != deviates("inline-never-refused"));
}

TEST_CASE("RESET to INIT needs port, P_Key index and access rights", "[attributes]") {
  Endpoint e;
  each_missing(e.qp.get(), init_attributes(e.options), kInitMask);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RESET);
}

TEST_CASE("INIT to RTR needs address, MTU, peer, PSN, RNR timer and read depth", "[attributes]") {
  Initialised e;
  each_missing(e.qp.get(), e.next, kRtrMask);
  CHECK(state_of(e.qp.get()) == IBV_QPS_INIT);
}

TEST_CASE("RTR to RTS needs timeout, retry counts, PSN and read depth", "[attributes]") {
  Initialised e;
  REQUIRE(e.go() == 0);
  each_missing(e.qp.get(), rts_attributes(e.options), kRtsMask);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RTR);
}

TEST_CASE("an attribute that a transition does not take is refused", "[attributes]") {
  Endpoint e;
  ibv_qp_attr a = init_attributes(e.options);
  a.timeout = 14;
  CHECK(modify(e.qp.get(), a, kInitMask | IBV_QP_TIMEOUT) == EINVAL);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RESET);
}

TEST_CASE("an attribute that RTS does not take is refused", "[attributes]") {
  Pair p;
  ibv_qp_attr a{};
  a.path_mtu = IBV_MTU_512;
  a.port_num = kPort;
  a.timeout = 10;
  for (const int bit : {IBV_QP_PATH_MTU, IBV_QP_PORT, IBV_QP_CAP, IBV_QP_TIMEOUT})
    CHECK(modify(p.a.qp.get(), a, bit) == EINVAL);
  CHECK(query(p.a.qp.get()).path_mtu == p.a.options.mtu);
}

TEST_CASE("a port that is not there is refused in INIT", "[attributes]") {
  Endpoint e;
  for (int port : {0, 9}) {
    ibv_qp_attr a = init_attributes(e.options);
    a.port_num = static_cast<std::uint8_t>(port);
    CHECK(modify(e.qp.get(), a, kInitMask) == EINVAL);
  }
}

TEST_CASE("a P_Key index beyond the table is refused in INIT", "[attributes]") {
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(open_device(0).get(), kPort, &port) == 0);
  for (const std::uint16_t index : {port.pkey_tbl_len, std::uint16_t{1000}}) {
    Endpoint e;
    ibv_qp_attr a = init_attributes(e.options);
    a.pkey_index = index;
    const int rc = modify(e.qp.get(), a, kInitMask);
    if (deviates("pkey-index-not-checked")) {
      CHECK(rc == 0);
      CHECK(state_of(e.qp.get()) == IBV_QPS_INIT);
    } else {
      CHECK(rc == EINVAL);
      CHECK(state_of(e.qp.get()) == IBV_QPS_RESET);
    }
  }
}

TEST_CASE("an address without a GID is refused on Ethernet", "[attributes]") {
  Initialised e;
  e.next.ah_attr.is_global = 0;
  CHECK(e.go() == (e.infiniband ? 0 : EINVAL));
}

TEST_CASE("a source GID index without an entry is refused", "[attributes]") {
  Initialised e;
  e.next.ah_attr.is_global = 1;
  e.next.ah_attr.grh.sgid_index = 200;
  CHECK(e.go() != 0);  // EINVAL, or ENODATA where the kernel looks for the entry first
  CHECK(state_of(e.qp.get()) == IBV_QPS_INIT);
}

TEST_CASE("a port that is not there is refused in the address", "[attributes]") {
  Initialised e;
  e.next.ah_attr.port_num = 9;
  CHECK(e.go() == EINVAL);
}

TEST_CASE("a path MTU above the port's maximum is refused", "[attributes]") {
  Initialised e;
  e.next.path_mtu = static_cast<ibv_mtu>(6);
  CHECK(e.go() == EINVAL);
}

TEST_CASE("a read depth as responder above the device's is refused", "[attributes]") {
  Initialised e;
  REQUIRE(e.limits.max_qp_rd_atom < 255);
  e.next.max_dest_rd_atomic = 255;
  const int rc = e.go();
  if (deviates("responder-depth-not-checked")) {
    CHECK(rc == 0);
    CHECK(state_of(e.qp.get()) == IBV_QPS_RTR);
  } else {
    CHECK(rc == EINVAL);
    CHECK(state_of(e.qp.get()) == IBV_QPS_INIT);
  }
}

TEST_CASE("a read depth as requester above the device's is refused", "[attributes]") {
  Initialised e;
  REQUIRE(e.go() == 0);
  ibv_qp_attr a = rts_attributes(e.options);
  a.max_rd_atomic = 255;
  const bool within = e.limits.max_qp_init_rd_atom == 255;
  CHECK(modify(e.qp.get(), a, kRtsMask) == (within ? 0 : EINVAL));
}

TEST_CASE("read depths up to the device's are taken", "[attributes]") {
  Initialised e;
  e.next.max_dest_rd_atomic = static_cast<std::uint8_t>(e.limits.max_qp_rd_atom);
  REQUIRE(e.go() == 0);
  ibv_qp_attr a = rts_attributes(e.options);
  a.max_rd_atomic = static_cast<std::uint8_t>(e.limits.max_qp_init_rd_atom);
  CHECK(modify(e.qp.get(), a, kRtsMask) == 0);
}

TEST_CASE("a timeout code above 31 is refused", "[attributes]") {
  Initialised e;
  REQUIRE(e.go() == 0);
  ibv_qp_attr a = rts_attributes(e.options);
  a.timeout = 32;
  CHECK(modify(e.qp.get(), a, kRtsMask) == (deviates("timeout-not-checked") ? 0 : EINVAL));
}

TEST_CASE("a query gives back what the queue pair was made with", "[attributes]") {
  Options o;
  o.signal_all = true;
  Endpoint e(0, o);
  ibv_qp_init_attr init{};
  (void)query(e.qp.get(), &init);
  CHECK(init.send_cq == e.cq.get());
  CHECK(init.recv_cq == e.cq.get());
  CHECK(init.srq == nullptr);
  CHECK(init.qp_type == IBV_QPT_RC);
  CHECK(init.sq_sig_all == 1);
  CHECK(init.cap.max_send_wr >= o.cap.max_send_wr);
}

TEST_CASE("a query gives back the attributes of INIT", "[attributes]") {
  Initialised e;
  const ibv_qp_attr a = query(e.qp.get());
  CHECK(int{a.port_num} == kPort);
  CHECK(a.pkey_index == 0);
  CHECK((a.qp_access_flags & kRemoteRights) ==
        (deviates("read-right-needs-depth") ? unsigned{IBV_ACCESS_REMOTE_WRITE} : kRemoteRights));
}

TEST_CASE("a query gives back the attributes of RTR", "[attributes]") {
  Initialised e;
  e.next.dest_qp_num = 0x1234;
  e.next.path_mtu = IBV_MTU_512;
  e.next.min_rnr_timer = 9;
  REQUIRE(e.go() == 0);
  const ibv_qp_attr a = query(e.qp.get());
  CHECK(a.dest_qp_num == 0x1234);
  CHECK(a.path_mtu == IBV_MTU_512);
  CHECK(int{a.min_rnr_timer} == 9);
  CHECK(a.rq_psn == e.options.rq_psn);
  CHECK(int{a.max_dest_rd_atomic} == e.options.rd_atomic);
  CHECK(a.ah_attr.is_global == (e.infiniband ? 0 : 1));
  if (a.ah_attr.is_global == 0) return;  // else there is no DGID
  CHECK(std::memcmp(a.ah_attr.grh.dgid.raw, e.gid.raw, sizeof e.gid.raw) == 0);
  CHECK(int{a.ah_attr.grh.sgid_index} == e.sgid_index);
}

TEST_CASE("a query gives back the attributes of RTS", "[attributes]") {
  Initialised e;
  REQUIRE(e.go() == 0);
  REQUIRE(e.rts(e.qp.get()) == 0);
  const ibv_qp_attr a = query(e.qp.get());
  CHECK(int{a.timeout} == e.options.timeout);
  CHECK(int{a.retry_cnt} == e.options.retry_cnt);
  CHECK(int{a.rnr_retry} == e.options.rnr_retry);
  CHECK(a.sq_psn == e.options.sq_psn);
  CHECK(int{a.max_rd_atomic} == e.options.rd_atomic);
}

TEST_CASE("the RNR timer can be changed in RTS", "[attributes]") {
  Pair p;
  ibv_qp_attr a{};
  a.min_rnr_timer = 5;
  REQUIRE(modify(p.a.qp.get(), a, IBV_QP_MIN_RNR_TIMER) == 0);
  CHECK(int{query(p.a.qp.get()).min_rnr_timer} == 5);
}
