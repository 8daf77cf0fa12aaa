// The faults late_us and split_us: writes to GPU memory that are overtaken as behind PCIe, and
// atomics that are an adapter's own.  A program of its own, for a process has one adapter with one
// list of faults.
#include <chrono>
#include <cstring>
#include <thread>

#include "test/soft/gpu_page.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

// Long against what a busy machine does to a test, for which only what is *not* yet there matters.
constexpr std::int64_t kLateMs = 400;
constexpr std::int64_t kSplitMs = 20;

Config late_config() {
  Config c;
  c.soft_cuda = SoftCuda::inprocess;
  c.soft_faults =
      "late_us=" + std::to_string(kLateMs * 1000) + ",split_us=" + std::to_string(kSplitMs * 1000);
  return c;
}

std::uint64_t host_word(const Side& s, std::size_t at) {
  auto& word = *reinterpret_cast<std::uint64_t*>(const_cast<std::uint8_t*>(s.buffer.data()) + at);
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

void set_word(Side& s, std::size_t at, std::uint64_t value) {
  std::memcpy(s.buffer.data() + at, &value, sizeof value);
}

// Writes `value` to the page's word and waits for the completion.
void write_word(Pair& p, const GpuPage& page, std::uint64_t value, std::size_t word = 0) {
  set_word(p.a, 0, value);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, page.address(word), page.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

void read(Pair& p, Side& by, std::uint64_t from, std::uint32_t rkey) {
  auto w = by.request(IBV_WR_RDMA_READ, 64, 8, from, rkey);
  REQUIRE(by.post(w) == 0);
  CHECK(p.wait(by).status == IBV_WC_SUCCESS);
}

bool arrives(const GpuPage& page, std::uint64_t value, std::size_t word = 0) {
  const std::int64_t end = now_ns() + 20 * kSecond;
  while (page.value(word) != value)
    if (now_ns() > end) return false;
  return true;
}

}  // namespace

TEST_CASE("a write to host memory overtakes one to GPU memory", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config());
  CHECK_FALSE(p.a.verbs.ordered);
  GpuPage page(gpu, p.b);
  REQUIRE(page.mr != nullptr);
  const std::int64_t start = now_ns();
  write_word(p, page, 5);
  set_word(p.a, 8, 6);
  auto signal = p.a.request(IBV_WR_RDMA_WRITE_WITH_IMM, 8, 8, p.b.address(128), p.b.mr->rkey);
  REQUIRE(p.b.post_receive(256, 8) == 0);
  REQUIRE(p.a.post(signal) == 0);
  CHECK(p.wait(p.b).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(host_word(p.b, 128) == 6);
  const bool before = page.value() == 0;
  CHECK((before || now_ns() - start > kLateMs * kMillisecond));
  CHECK(arrives(page, 5));
}

TEST_CASE("deregistration waits until a late write has been taken from the GPU", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config());
  GpuPage near(gpu, p.a), far(gpu, p.b);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, far.address(), far.mr->rkey);
  w.sge = {near.address(), 8, near.mr->lkey};
  gpu.pause(true);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.a));
  CHECK(waits_for_copy(gpu, p.a, std::exchange(near.mr, nullptr)));
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

TEST_CASE("a READ of the GPU's memory pushes what was posted there, and no other does",
          "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config()), other({}, late_config());
  GpuPage page(gpu, p.b), near(gpu, p.b), elsewhere(gpu, other.b);
  const std::int64_t start = now_ns();
  write_word(p, page, 5);
  read(p, p.a, p.b.address(), p.b.mr->rkey);                      // host memory
  read(other, other.a, elsewhere.address(), elsewhere.mr->rkey);  // another adapter
  const bool before = page.value() == 0;
  CHECK((before || now_ns() - start > kLateMs * kMillisecond));
  read(p, p.a, near.address(), near.mr->rkey);  // of the same GPU
  CHECK(page.value() == 5);
  write_word(p, page, 7);
  read(p, p.a, page.address(), page.mr->rkey);
  CHECK(host_word(p.a, 64) == 7);
}

TEST_CASE("neither the end of a queue pair nor that of its port pushes anything, the driver does",
          "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config()), other({}, late_config());
  GpuPage page(gpu, p.b), far(gpu, other.b);
  const std::int64_t start = now_ns();
  write_word(p, page, 5);
  write_word(other, far, 6);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  for (Side* side : {&p.a, &p.b})
    REQUIRE(side->verbs.modify_qp(side->qp, &attributes, IBV_QP_STATE) == 0);
  REQUIRE(soft::set_port_state(p.a.context, 1, false) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool before = page.value() == 0;
  CHECK((before || now_ns() - start > kLateMs * kMillisecond));
  soft::place_posted_writes(1);  // another GPU
  soft::place_posted_writes(0);
  CHECK(page.value() == 5);
  CHECK(far.value() == 6);
  REQUIRE(soft::set_port_state(p.a.context, 1, true) == 0);
}

TEST_CASE("writes to one GPU keep their order, and an atomic there comes after them",
          "[soft][cuda]") {
  FakeGpu gpu;
  gpu.slow = GENERATE(false, true);
  Pair p({}, late_config());
  GpuPage page(gpu, p.b);
  std::memset(p.a.buffer.data() + 1024, 9, 2048);
  auto data = p.a.request(IBV_WR_RDMA_WRITE, 1024, 2048, page.address(8), page.mr->rkey);
  REQUIRE(p.a.post(data) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  write_word(p, page, 1);
  SECTION("a word") {
    CHECK(arrives(page, 1));
    CHECK(page.value(8 + 255) == 0x0909090909090909u);
  }
  SECTION("an atomic") {
    auto add = p.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, page.address(), page.mr->rkey);
    add.wr.wr.atomic.compare_add = 2;
    REQUIRE(p.a.post(add) == 0);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
    CHECK(page.value() == 3);
    CHECK(page.value(8 + 255) == 0x0909090909090909u);
  }
}

TEST_CASE("what a READ brings to GPU memory comes after its completion, unless it is pushed",
          "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config());
  GpuPage page(gpu, p.a);
  set_word(p.b, 0, 11);
  const std::int64_t start = now_ns();
  auto w = p.a.request(IBV_WR_RDMA_READ, 0, 8, p.b.address(), p.b.mr->rkey);
  w.sge = {page.address(), 8, page.mr->lkey};
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).opcode == IBV_WC_RDMA_READ);
  const bool before = page.value() == 0;
  CHECK((before || now_ns() - start > kLateMs * kMillisecond));
  read(p, p.b, page.address(), page.mr->rkey);
  CHECK(page.value() == 11);
}

TEST_CASE("deregistration waits for what is on its way", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, late_config());
  GpuPage page(gpu, p.b);
  write_word(p, page, 5);
  p.b.verbs.dereg_mr(page.mr);
  page.mr = nullptr;
  CHECK(page.value() == 5);
}

TEST_CASE("split atomics lose what a CPU adds between, and nothing of each other", "[soft]") {
  Pair p({}, late_config()), q({}, late_config());
  auto& word = *reinterpret_cast<std::uint64_t*>(p.b.buffer.data());
  ibv_mr* other =
      q.b.verbs.reg_mr_iova2(q.b.pd, p.b.buffer.data(), 64, p.b.address(), Options{}.access);
  REQUIRE(other != nullptr);
  std::uint64_t adds = 0;
  bool lost = false;
  for (int tries = 0; tries < 20 && !lost; ++tries) {
    std::atomic_ref(word).store(0);
    auto one = p.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, p.b.address(), p.b.mr->rkey);
    auto two = q.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, p.b.address(), other->rkey);
    one.wr.wr.atomic.compare_add = 1;
    two.wr.wr.atomic.compare_add = 1000;
    REQUIRE(p.a.post(one) == 0);
    REQUIRE(q.a.post(two) == 0);
    for (int i = 0; i < 10; ++i) {
      (void)ibv_poll_cq(p.b.cq, 0, nullptr);
      (void)ibv_poll_cq(q.b.cq, 0, nullptr);
    }
    if (tries % 2 != 0) std::atomic_ref(word).fetch_add(1'000'000);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
    CHECK(q.wait(q.a).status == IBV_WC_SUCCESS);
    adds = std::atomic_ref(word).load();
    CHECK(adds % 1'000'000 == 1001);
    lost = tries % 2 != 0 && adds < 1'000'000;
  }
  CHECK(lost);
  q.b.verbs.dereg_mr(other);
}
