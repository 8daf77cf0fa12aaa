// A DUMP is what makes visible the data of gets: the adapter reads memory of its own, and a read
// does not pass what it has written there.  On the model, with data in GPU memory placed late.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "test/fabric/fake_gpu.h"
#include "test/gda/mlx5/member.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

constexpr std::int64_t kLate = 300 * kMillisecond;

// A page of the made-up GPU's memory, registered at a member's adapter.
struct GpuPlace {
  GpuPlace(FakeGpu& gpu, Member<>& m)
      : word(static_cast<std::uint64_t*>(std::aligned_alloc(4096, 4096))), gpu_(gpu) {
    std::memset(word, 0, 4096);
    gpu.own(word, 4096);
    auto registered =
        gda::mlx5::register_region(m.adapter(), {.data = word, .bytes = 4096, .on_gpu = true});
    REQUIRE(registered);
    mr = std::move(registered).take();
  }
  ~GpuPlace() {
    mr.reset();
    gpu_.disown(word);
    std::free(word);
  }
  GpuPlace(const GpuPlace&) = delete;
  GpuPlace& operator=(const GpuPlace&) = delete;
  std::uint64_t value() const { return std::atomic_ref(*word).load(std::memory_order_acquire); }
  std::uint32_t key() const { return gda::swap32(mr->lkey); }
  std::uint64_t* const word;
  Owned<ibv_mr> mr;

 private:
  FakeGpu& gpu_;
};

}  // namespace

TEST_CASE("What a READ has brought is there behind a DUMP of that GPU's memory, and of no other") {
  FakeGpu gpu;
  Pair<> pair({.companions = false, .faults = "late_us=300000"});
  auto& m = pair.a;
  GpuPlace place(gpu, m), beside(gpu, m);
  gda::Producer<gda::DeviceQp30> queue(m.queue(1));
  std::uint64_t next = 0;
  const auto run = [&](const auto& make) {
    REQUIRE(queue.reserve(1, next) == 0);
    queue.write(next, make(next));
    REQUIRE(queue.submit(next, 1) == 0);
    return queue.poll(next);
  };
  const std::uint64_t brought = 0x1122334455667788u;
  std::memcpy(pair.b.data(), &brought, sizeof brought);
  const std::int64_t start = now_ns();
  const auto not_yet = [&] {
    const bool old = place.value() == 0;
    return old || now_ns() - start > kLate;
  };
  REQUIRE(run([&](std::uint64_t i) {
            return gda::make_read(i, queue.qpn(), 0, m.window_keys()[1], 0, place.key(), 8);
          }) == 0);
  CHECK(not_yet());
  REQUIRE(run([&](std::uint64_t i) { return gda::make_dump(i, queue.qpn(), m.sink_key()); }) == 0);
  CHECK(not_yet());  // the sink is memory of the host
  REQUIRE(run([&](std::uint64_t i) { return gda::make_dump(i, queue.qpn(), beside.key()); }) == 0);
  CHECK(place.value() == brought);
  // A key of nobody ends the queue.
  CHECK(run([&](std::uint64_t i) { return gda::make_dump(i, queue.qpn(), 0x12345678); }) == -EIO);
}
