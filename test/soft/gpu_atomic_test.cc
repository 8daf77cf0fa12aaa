// Atomics on GPU memory, over a made-up CUDA driver: the copy thread of the memory's GPU makes them
// while the responder stands still.
#include <chrono>
#include <cstring>
#include <thread>

#include "plugin/fabric/soft/hca.h"
#include "test/soft/gpu_page.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

Side::Wr fetch_add(Side& s, const GpuPage& page, std::uint64_t add, std::size_t word = 0) {
  auto w = s.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, page.address(word), page.mr->rkey);
  w.wr.wr.atomic.compare_add = add;
  return w;
}

std::uint64_t fetched(const Side& s) {
  std::uint64_t old = 0;
  std::memcpy(&old, s.buffer.data(), sizeof old);
  return old;
}

}  // namespace

TEST_CASE("atomics act on words of GPU memory and give back the old value", "[soft][cuda]") {
  FakeGpu gpu;
  gpu.slow = GENERATE(false, true);
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  REQUIRE(page.mr != nullptr);
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto w = fetch_add(p.a, page, 20 + i, 5);
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.wait(p.a).opcode == IBV_WC_FETCH_ADD);
    CHECK(fetched(p.a) == i * 20 + (i == 2 ? 1 : 0));
  }
  CHECK(page.value(5) == 63);
  for (const std::uint64_t expected : {std::uint64_t{1}, std::uint64_t{63}}) {
    auto w = p.a.request(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, page.address(5), page.mr->rkey);
    w.wr.wr.atomic.compare_add = expected;
    w.wr.wr.atomic.swap = 7;
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.wait(p.a).opcode == IBV_WC_COMP_SWAP);
    CHECK(fetched(p.a) == 63);
    CHECK(page.value(5) == (expected == 63 ? 7 : 63));
  }
  CHECK(page.value(4) == 0);
  CHECK(page.value(6) == 0);
}

TEST_CASE("what follows an atomic on GPU memory is executed after it", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  REQUIRE(page.mr != nullptr);
  p.b.buffer[0] = 1;
  p.a.buffer[64] = 9;
  gpu.pause(true);
  auto w = fetch_add(p.a, page, 3);
  REQUIRE(p.a.post(w) == 0);
  auto after = p.a.request(IBV_WR_SEND, 64, 1, 0, 0);
  REQUIRE(p.b.post_receive(0, 64) == 0);
  REQUIRE(p.a.post(after) == 0);
  CHECK(p.quiet(p.b));
  CHECK(p.quiet(p.a));
  CHECK(p.b.buffer[0] == 1);
  gpu.pause(false);
  CHECK(p.wait(p.b).opcode == IBV_WC_RECV);
  CHECK(p.b.buffer[0] == 9);
  CHECK(page.value() == 3);
  CHECK(p.wait(p.a).opcode == IBV_WC_FETCH_ADD);
}

TEST_CASE("what a peer sends in place of an atomic's answer ends it in error", "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  REQUIRE(page.mr != nullptr);
  const std::uint32_t length = GENERATE(0u, 4u, 16u);
  CAPTURE(length);
  gpu.pause(true);
  auto w = fetch_add(p.a, page, 3);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.a));  // the true answer does not come
  {
    soft::SoftQp& qp = *soft::soft(p.b.qp);
    const std::lock_guard hold(qp.lock);
    const std::uint64_t at = qp.link.mine->produced.load();
    soft::PacketHeader h{};
    h.op = soft::PacketOp::read_response;
    h.length = length;
    h.bytes = static_cast<std::uint32_t>(sizeof h) + (length + 15) / 16 * 16;
    std::memcpy(qp.link.out_ring + at % soft::kRingBytes, &h, sizeof h);
    qp.link.mine->produced.store(at + h.bytes, std::memory_order_release);
    soft::ring_far_bell(qp);
  }
  CHECK(p.wait(p.a).status == IBV_WC_LOC_PROT_ERR);
  gpu.pause(false);
}

TEST_CASE("atomics of several queue pairs on one word of GPU memory lose nothing", "[soft][cuda]") {
  FakeGpu gpu;
  const Config config = with_cuda();
  Pair p({}, config), q({}, config);
  GpuPage page(gpu, p.b), same(gpu, q.b);
  // One word, registered with the protection domains of both receivers.
  ibv_mr* other = register_gpu(q.b, page.address(), 4096, Options{}.access);
  REQUIRE(other != nullptr);
  constexpr int kEach = 200;
  for (int i = 0; i < kEach; ++i) {
    auto one = fetch_add(p.a, page, 1);
    auto two = fetch_add(q.a, page, 1000);
    two.wr.wr.atomic.rkey = other->rkey;
    REQUIRE(p.a.post(one) == 0);
    REQUIRE(q.a.post(two) == 0);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
    CHECK(q.wait(q.a).status == IBV_WC_SUCCESS);
  }
  CHECK(page.value() == kEach * 1001);
  q.b.verbs.dereg_mr(other);
}

TEST_CASE("atomics on GPU memory that may not be, or fail, are errors", "[soft][cuda]") {
  const LogCapture log;
  FakeGpu gpu;
  SECTION("no right to") {
    Pair p({}, with_cuda());
    GpuPage page(gpu, p.b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    auto w = fetch_add(p.a, page, 3);
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.wait(p.a).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(page.value() == 0);
  }
  SECTION("the GPU refuses") {
    Pair p({}, with_cuda());
    GpuPage page(gpu, p.b);
    gpu.bad_address = page.address();
    auto w = fetch_add(p.a, page, 3);
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.wait(p.a).status == IBV_WC_REM_OP_ERR);
    CHECK(p.b.next_event() == IBV_EVENT_QP_FATAL);
    CHECK(page.value() == 0);
  }
}

TEST_CASE("a queue pair with an atomic on GPU memory under way is destroyed after it",
          "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  gpu.pause(true);
  auto w = fetch_add(p.a, page, 3);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.a));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gpu.pause(false);
  });
  p.b.verbs.destroy_qp(p.b.qp);
  p.b.qp = nullptr;
  CHECK(page.value() == 3);
  later.join();
}
