// Transfers between GPU memory here, of a made-up driver, and host memory of another process.
#include <sys/uio.h>

#include <thread>

#include "plugin/fabric/soft/hca.h"
#include "test/fabric/fake_gpu.h"
#include "test/soft/gpu_page.h"
#include "test/soft/processes.h"
#include "test/soft/team.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

constexpr std::size_t kBytes = 4 << 20;

// GPU memory at this side of a queue pair whose other side is a child with host memory.
struct Far {
  FakeGpu gpu;
  Child child;
  Side s;
  GpuPage pages;
  std::uint8_t* const memory = reinterpret_cast<std::uint8_t*>(pages.address());

  static Config config(const std::string& role) {
    Config c = with_cuda();
    c.soft_direct = role == "direct";
    return c;
  }
  explicit Far(const std::string& role)
      : child(role), s({}, config(role)), pages(gpu, s, Options{}.access, 2 * kBytes) {
    REQUIRE(pages.mr != nullptr);
    child.connect(s);
  }
  ~Far() {  // before its memory
    if (s.qp != nullptr) s.verbs.destroy_qp(std::exchange(s.qp, nullptr));
  }
  Side::Wr request(ibv_wr_opcode opcode, std::size_t at, std::uint32_t bytes, std::size_t far) {
    auto w = s.request(opcode, 0, bytes, child.theirs.address + far, child.theirs.rkey);
    w.sge.addr = reinterpret_cast<std::uint64_t>(memory + at);
    w.sge.lkey = pages.mr->lkey;
    return w;
  }
  int post(ibv_wr_opcode opcode, std::size_t at, std::uint32_t bytes, std::size_t far) {
    auto w = request(opcode, at, bytes, far);
    return s.post(w);
  }
  std::vector<std::uint8_t> theirs(std::size_t at, std::size_t bytes) const {
    std::vector<std::uint8_t> out(bytes);
    iovec near{out.data(), bytes}, far{reinterpret_cast<void*>(child.theirs.address + at), bytes};
    REQUIRE(::process_vm_readv(child.pid, &near, 1, &far, 1, 0) == static_cast<ssize_t>(bytes));
    return out;
  }
};

}  // namespace

TEST_CASE("GPU memory here is written to and read from host memory of another process",
          "[soft][cuda]") {
  const std::string role = GENERATE("direct", "packets");
  CAPTURE(role);
  Far f(role);
  f.gpu.slow = true;
  for (const std::uint32_t bytes : {1u, 8u, 20u, 4096u, 5001u, 3u << 20}) {
    CAPTURE(bytes);
    paint(f.memory, bytes, bytes);
    REQUIRE(f.post(IBV_WR_RDMA_WRITE, 0, bytes, 64) == 0);
    REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
    const auto there = f.theirs(64, bytes);
    CHECK(std::memcmp(there.data(), f.memory, bytes) == 0);
    std::memset(f.memory + kBytes, 0xee, bytes + 1);
    REQUIRE(f.post(IBV_WR_RDMA_READ, kBytes, bytes, 64) == 0);
    REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
    CHECK(std::memcmp(f.memory + kBytes, f.memory, bytes) == 0);
    CHECK(f.memory[kBytes + bytes] == 0xee);
  }
  CHECK(f.child.finish() == 0);
}

TEST_CASE("deregistration waits for the GPU's part of it", "[soft][cuda]") {
  const std::string role = GENERATE("direct", "packets");
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  CAPTURE(role, opcode);
  Far f(role);
  f.gpu.pause(true);
  REQUIRE(f.post(opcode, 0, 5001, 64) == 0);
  ibv_wc wc{};
  int ended = 0;
  const auto poll_for = [&](std::int64_t limit, bool until_given) {
    for (const std::int64_t end = now_ns() + limit;
         now_ns() < end && !(until_given && f.gpu.has_work());)
      ended += ibv_poll_cq(f.s.cq, 1, &wc);
  };
  poll_for(30 * kSecond, true);
  poll_for(50 * kMillisecond, false);
  CHECK(f.gpu.has_work());
  CHECK(ended == 0);
  CHECK(waits_for_copy(f.gpu, f.s, std::exchange(f.pages.mr, nullptr)));
  CHECK(wait(f.s).status == (opcode == IBV_WR_RDMA_READ ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
  CHECK(f.child.finish() == 0);
}

TEST_CASE("many of them, and pieces of GPU and host memory in one", "[soft][cuda]") {
  const std::string role = GENERATE("direct", "packets");
  CAPTURE(role);
  Far f(role);
  paint(f.memory, 64 * 512, 3);
  for (std::uint32_t i = 0; i < 32; ++i)
    REQUIRE(f.post(IBV_WR_RDMA_WRITE, std::size_t{i} * 512, 512, std::size_t{i} * 512) == 0);
  for (std::uint32_t i = 0; i < 32; ++i)
    REQUIRE(f.post(IBV_WR_RDMA_READ, kBytes + std::size_t{i} * 512, 512, std::size_t{i} * 512) ==
            0);
  for (int i = 0; i < 64; ++i) REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(f.memory, f.memory + kBytes, 32 * 512) == 0);

  for (std::size_t i = 0; i < 300; ++i) f.s.buffer[i] = static_cast<std::uint8_t>(200 - i);
  const auto gpu = [&](std::size_t at) { return reinterpret_cast<std::uint64_t>(f.memory + at); };
  for (const bool read : {false, true}) {
    ibv_sge parts[] = {{gpu(read ? kBytes : 0), 100, f.pages.mr->lkey},
                       {f.s.address(read ? 1000 : 0), 300, f.s.mr->lkey},
                       {gpu(0), 0, f.pages.mr->lkey},
                       {gpu(read ? kBytes + 500 : 500), 77, f.pages.mr->lkey}};
    auto w = f.request(read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 1, 8192);
    w.wr.sg_list = parts;
    w.wr.num_sge = 4;
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(f.s.qp, &w.wr, &bad) == 0);
    REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
  }
  CHECK(std::memcmp(f.memory, f.memory + kBytes, 100) == 0);
  CHECK(std::memcmp(f.memory + 500, f.memory + kBytes + 500, 77) == 0);
  CHECK(std::memcmp(f.s.buffer.data(), f.s.buffer.data() + 1000, 300) == 0);
  CHECK(f.child.finish() == 0);
}

TEST_CASE("what follows such a write is not seen before it", "[soft][cuda]") {
  const std::string role = GENERATE("direct", "packets");
  CAPTURE(role);
  Far f(role);
  paint(f.memory, 5000, 9);
  f.s.buffer[0] = 42;
  f.gpu.pause(true);
  REQUIRE(f.post(IBV_WR_RDMA_WRITE, 0, 5000, 64) == 0);
  auto flag = f.s.request(IBV_WR_RDMA_WRITE, 0, 1, f.child.theirs.address, f.child.theirs.rkey);
  REQUIRE(f.s.post(flag) == 0);
  ibv_wc wc{};
  int ended = 0;
  // On a busy machine it takes long until the GPU is asked; only then is there what may overtake.
  for (const std::int64_t end = now_ns() + 30 * kSecond; !f.gpu.has_work() && now_ns() < end;)
    ended += ibv_poll_cq(f.s.cq, 1, &wc);
  REQUIRE(f.gpu.has_work());
  usleep(20000);
  CHECK(ended + ibv_poll_cq(f.s.cq, 1, &wc) == 0);
  CHECK(f.theirs(0, 1)[0] == 0);
  f.gpu.pause(false);
  REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
  const auto there = f.theirs(64, 5000);
  CHECK(std::memcmp(there.data(), f.memory, 5000) == 0);
  REQUIRE(wait(f.s).status == IBV_WC_SUCCESS);
  CHECK(f.theirs(0, 1)[0] == 42);
  CHECK(f.child.finish() == 0);
}

TEST_CASE("a copy that the GPU refuses ends the transfer in error", "[soft][cuda]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  const std::string role = GENERATE("direct", "packets");
  CAPTURE(role, opcode);
  Far f(role);
  f.gpu.bad_address = reinterpret_cast<std::uint64_t>(f.memory);
  REQUIRE(f.post(opcode, 0, 5000, 64) == 0);
  REQUIRE(f.post(opcode, kBytes, 8, 64) == 0);
  CHECK(wait(f.s).status == IBV_WC_LOC_PROT_ERR);
  CHECK(wait(f.s).status == IBV_WC_WR_FLUSH_ERR);
  f.gpu.bad_address = 0;
  CHECK(f.child.finish() == 0);
}

TEST_CASE("a key that the far end refuses is refused here too", "[soft][cuda]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  const std::string role = GENERATE("direct", "packets");
  CAPTURE(role, opcode);
  Far f(role);
  REQUIRE(f.post(opcode, 0, 4096, (8 << 20) - 8) == 0);  // beyond its memory
  CHECK(wait(f.s).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(f.child.finish() == 0);
}

TEST_CASE("a queue pair that ends during such a transfer waits for the copy engine",
          "[soft][cuda]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  const std::string how = GENERATE("error", "destroy");
  CAPTURE(how, opcode);
  Far f("direct");
  paint(f.memory, 5000, 1);
  f.gpu.pause(true);
  REQUIRE(f.post(opcode, 0, 5000, 64) == 0);
  const auto under_way = [&] {
    soft::SoftQp& qp = *soft::soft(f.s.qp);
    const std::lock_guard hold(qp.lock);
    return qp.copies.jobs_in_flight != 0;
  };
  for (const std::int64_t end = now_ns() + 5 * kSecond; !under_way() && now_ns() < end;)
    usleep(100);
  std::thread later([&] {
    usleep(20000);
    f.gpu.pause(false);
  });
  if (how == "error") {
    REQUIRE(f.s.to_error() == 0);
    CHECK(wait(f.s).status == IBV_WC_WR_FLUSH_ERR);
  } else {
    REQUIRE(f.s.verbs.destroy_qp(std::exchange(f.s.qp, nullptr)) == 0);
  }
  later.join();
  if (opcode == IBV_WR_RDMA_WRITE) CHECK(f.theirs(64, 1)[0] == 0);
  CHECK(f.child.finish() == 0);
}
