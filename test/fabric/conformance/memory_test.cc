// Protection domains and memory regions: what may be registered, and what a key reaches.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

// Anonymous pages with a protection of their own.
struct Pages {
  std::size_t bytes;
  void* at;
  explicit Pages(std::size_t n, int protection)
      : bytes(n), at(::mmap(nullptr, n, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(at != MAP_FAILED);
  }
  ~Pages() { ::munmap(at, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
};

// The I/O address of the region that register_moved() makes.
std::uint64_t moved(const Endpoint& end) { return 0x40000000 + (end.address() & 4095); }
Mr register_moved(Endpoint& end) {
  Mr mr(ibv_reg_mr_iova(end.pd.get(), end.buffer.data(), 4096, moved(end), end.all_rights));
  REQUIRE(mr != nullptr);
  return mr;
}

}  // namespace

TEST_CASE("an unused PD can be freed", "[memory]") {
  const Context c = open_device(0);
  ibv_pd* pd = ibv_alloc_pd(c.get());
  REQUIRE(pd != nullptr);
  CHECK(pd->context == c.get());
  CHECK(ibv_dealloc_pd(pd) == 0);
}

TEST_CASE("a PD with a memory region is busy", "[memory]") {
  const Context c = open_device(0);
  const Pd pd(ibv_alloc_pd(c.get()));
  std::uint8_t bytes[64];
  const Mr mr(ibv_reg_mr(pd.get(), bytes, sizeof bytes, 0));
  REQUIRE(mr != nullptr);
  CHECK(ibv_dealloc_pd(pd.get()) == EBUSY);
}

TEST_CASE("a PD with a queue pair is busy", "[memory]") {
  Endpoint e;
  e.mr.reset();
  CHECK(ibv_dealloc_pd(e.pd.get()) == EBUSY);
}

TEST_CASE("a memory region knows its address, length, PD and context", "[memory]") {
  Endpoint e;
  CHECK(e.mr->addr == e.buffer.data());
  CHECK(e.mr->length == e.buffer.size());
  CHECK(e.mr->pd == e.pd.get());
  CHECK(e.mr->context == e.context.get());
}

TEST_CASE("remote write without local write is refused", "[memory]") {
  Endpoint e;
  errno = 0;
  CHECK(e.make_mr(IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("remote atomics without local write are refused", "[memory]") {
  Endpoint e;
  errno = 0;
  CHECK(e.make_mr(IBV_ACCESS_REMOTE_ATOMIC) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("a region may have the right to remote atomics", "[memory]") {
  Endpoint e;
  errno = 0;
  const bool refused = deviates("no-right-to-atomics");
  CHECK((e.make_mr(kAllRights) == nullptr) == refused);
  if (refused) CHECK(errno == EINVAL);
}

TEST_CASE("remote read without local write is allowed", "[memory]") {
  Endpoint e;
  CHECK(e.make_mr(IBV_ACCESS_REMOTE_READ) != nullptr);
}

TEST_CASE("relaxed ordering may be asked for", "[memory]") {
  Endpoint e;
  CHECK(e.make_mr(e.all_rights | IBV_ACCESS_RELAXED_ORDERING) != nullptr);
}

TEST_CASE("an access right that does not exist is refused", "[memory]") {
  Endpoint e;
  CHECK(e.make_mr(IBV_ACCESS_LOCAL_WRITE | (1u << 15)) == nullptr);
}

TEST_CASE("a memory region of no bytes is refused or reaches nothing", "[memory]") {
  Pair p;
  const Mr empty = p.b.make_mr(p.b.all_rights, 0, 0);
  if (empty == nullptr) {
    CHECK(errno == EINVAL);
    return;
  }
  Wr w = p.write(1);
  w.wr.wr.rdma.rkey = empty->rkey;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a range that wraps around the address space is refused", "[memory]") {
  Endpoint e;
  const Mr mr(ibv_reg_mr(e.pd.get(), e.buffer.data(), ~std::size_t{0} - 4096, 0));
  CHECK(mr == nullptr);
}

TEST_CASE("memory that is not mapped cannot be registered", "[memory]") {
  Endpoint e;
  void* gone = nullptr;
  {
    const Pages p(4096, PROT_READ | PROT_WRITE);
    gone = p.at;
  }
  const Mr mr(ibv_reg_mr(e.pd.get(), gone, 4096, e.all_rights));
  CHECK(mr == nullptr);
}

TEST_CASE("read-only memory can be registered for remote reads", "[memory]") {
  Pair p;
  const Pages pages(4096, PROT_READ);
  const Mr mr(
      ibv_reg_mr(p.b.pd.get(), pages.at, 4096, static_cast<unsigned>(IBV_ACCESS_REMOTE_READ)));
  REQUIRE(mr != nullptr);
  p.a.fill(0, 64);
  Wr w = p.request(IBV_WR_RDMA_READ, 64);
  w.wr.wr.rdma = {reinterpret_cast<std::uint64_t>(pages.at), mr->rkey};
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(int{p.a.buffer[0]} == 0);
  CHECK(int{p.a.buffer[63]} == 0);
}

TEST_CASE("read-only memory cannot be registered for writing", "[memory]") {
  Endpoint e;
  const Pages pages(4096, PROT_READ);
  const Mr mr(
      ibv_reg_mr(e.pd.get(), pages.at, 4096, static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE)));
  CHECK(mr == nullptr);
}

TEST_CASE("two regions over one memory have keys of their own", "[memory]") {
  Endpoint e;
  const Mr one = e.make_mr(e.all_rights), two = e.make_mr(e.all_rights);
  REQUIRE(one != nullptr);
  REQUIRE(two != nullptr);
  CHECK(one->rkey != two->rkey);
  CHECK(one->lkey != two->lkey);
}

TEST_CASE("two regions over one memory have rights of their own", "[memory]") {
  Pair p;
  const Mr readable_only = p.b.make_mr(IBV_ACCESS_REMOTE_READ);
  Wr w = p.write(8);
  CHECK(p.run(w).status == IBV_WC_SUCCESS);  // through the region with all rights
  w.wr.wr.rdma.rkey = readable_only->rkey;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("deregistering one of two overlapping regions leaves the other", "[memory]") {
  Pair p;
  Mr other = p.b.make_mr(p.b.all_rights);
  CHECK(ibv_dereg_mr(other.release()) == 0);
  p.a.fill(0, 100);
  CHECK(p.run(p.write(100)).status == IBV_WC_SUCCESS);
  CHECK(p.same(100));
}

TEST_CASE("a deregistered remote key is refused", "[memory]") {
  Pair p;
  Mr other = p.b.make_mr(p.b.all_rights);
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey = other->rkey;
  other.reset();
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a deregistered local key is refused", "[memory]") {
  Pair p;
  Mr other = p.a.make_mr(p.a.all_rights);
  Wr w = p.write(8);
  w.sge.lkey = other->lkey;
  other.reset();
  CHECK(p.run(w).status == bad_lkey_status());
}

TEST_CASE("registering the same memory again does not revive the old key", "[memory]") {
  Pair p;
  Mr mr = p.b.make_mr(p.b.all_rights);
  const std::uint32_t old = mr->rkey;
  mr.reset();
  mr = p.b.make_mr(p.b.all_rights);
  CHECK(mr->rkey != old);
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  w.wr.wr.rdma.rkey = old;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a region with its own I/O address is reached by that address", "[memory]") {
  Pair p;
  const std::uint64_t iova = moved(p.b);
  const Mr mr = register_moved(p.b);
  p.a.fill(0, 200);
  Wr w = p.write(200);
  w.wr.wr.rdma = {iova + 100, mr->rkey};
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(200, 0, 100));
  w.sge = p.a.sge(1000, 200);
  w.wr.opcode = IBV_WR_RDMA_READ;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(200, 1000, 100));
}

TEST_CASE("a region with its own I/O address is not reached by the virtual one", "[memory]") {
  Pair p;
  const Mr mr = register_moved(p.b);
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a local SGE of a region with its own I/O address uses that address", "[memory]") {
  Pair p;
  const std::uint64_t iova = moved(p.a);
  const Mr mr = register_moved(p.a);
  p.a.fill(0, 200);
  Wr w = p.write(200);
  w.sge = {iova, 200, mr->lkey};
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(200));
  w.sge.addr = iova + 1000;
  w.wr.opcode = IBV_WR_RDMA_READ;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(200, 1000, 0));
}

TEST_CASE("a receive into a region with its own I/O address uses that address", "[memory]") {
  Pair p;
  const std::uint64_t iova = moved(p.b);
  const Mr mr = register_moved(p.b);
  REQUIRE(post_receive(p.b.qp.get(), {iova + 100, 200, mr->lkey}, 5) == 0);
  p.a.fill(0, 200);
  CHECK(p.run(p.send(200)).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).wr_id == 5);
  CHECK(p.same(200, 0, 100));
}

TEST_CASE("many regions can exist at once and all their keys differ", "[memory]") {
  Endpoint e;
  std::vector<Mr> regions;
  std::vector<std::uint32_t> keys;
  for (std::size_t i = 0; i < 200; ++i) {
    regions.push_back(e.make_mr(e.all_rights, i * 64, 64));
    REQUIRE(regions.back() != nullptr);
    keys.push_back(regions.back()->rkey);
  }
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}
