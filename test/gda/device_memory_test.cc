// Memory that kernels and the engine share: without a GPU, and over a made-up CUDA driver whose
// "GPU" memory is ordinary memory and whose allocations are aligned as badly as the real one's.
#include "gda/memory/device_memory.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gda/memory/free_behind.h"
#include "plugin/gpu/driver.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::gda {
namespace {

namespace cuda = gpu::cuda;
using test::LogCapture;

// The fake driver's functions are plain pointers, so their state is one object per process.
struct FakeCuda {
  std::map<std::uint64_t, void*> device, pinned;  // handed out -> to free
  int contexts = 0, streams = 0, copies = 0;
  std::size_t largest_copy = 0;
  int busy_queries = 0;  // how often a stream says "not ready" first
  int not_ready = 0;
  bool other_address = false, no_memory = false, broken_stream = false;
};
FakeCuda* fake = nullptr;

int allocate(std::map<std::uint64_t, void*>& where, std::size_t n, std::uint64_t& out) {
  if (fake->no_memory) return 2;
  auto* p = static_cast<std::uint8_t*>(std::aligned_alloc(4096, (n + 8191) / 4096 * 4096));
  std::memset(p, 0xEE, n + 512);
  out = reinterpret_cast<std::uintptr_t>(p + 512);  // as the driver does with small pieces
  where[out] = p;
  return 0;
}
int release(std::map<std::uint64_t, void*>& where, std::uint64_t p) {
  if (where.count(p) == 0) return 1;
  std::free(where[p]);
  where.erase(p);
  return 0;
}

class FakeDriver {
 public:
  FakeDriver() {
    fake = &state_;
    d_.get_error_name = [](int, const char** name) { return *name = "FAKE_ERROR", 0; };
    d_.primary_retain = [](cuda::Context* c, int gpu) {
      if (gpu > 1) return 101;
      ++fake->contexts;
      *c = fake;
      return 0;
    };
    d_.primary_release = [](int) { return --fake->contexts, 0; };
    d_.ctx_push = [](cuda::Context) { return 0; };
    d_.ctx_pop = [](cuda::Context*) { return 0; };
    d_.exchange_capture_mode = [](int*) { return 0; };
    d_.mem_alloc = [](cuda::Address* p, std::size_t n) {
      std::uint64_t at = 0;
      const int r = allocate(fake->device, n, at);
      *p = at;
      return r;
    };
    d_.mem_free = [](cuda::Address p) { return release(fake->device, p); };
    d_.host_alloc = [](void** p, std::size_t n, unsigned flags) {
      if (flags != (cuda::kHostAllocPortable | cuda::kHostAllocMapped)) return 1;
      std::uint64_t at = 0;
      const int r = allocate(fake->pinned, n, at);
      *p = reinterpret_cast<void*>(at);
      return r;
    };
    d_.host_free = [](void* p) {
      return release(fake->pinned, reinterpret_cast<std::uintptr_t>(p));
    };
    d_.host_device_pointer = [](cuda::Address* out, void* p, unsigned) {
      *out = reinterpret_cast<std::uintptr_t>(p) + (fake->other_address ? 4096 : 0);
      return 0;
    };
    d_.stream_create = [](cuda::Stream* s, unsigned flags) {
      if (flags != cuda::kStreamNonBlocking) return 1;
      ++fake->streams;
      *s = fake;
      return 0;
    };
    d_.stream_destroy = [](cuda::Stream) { return --fake->streams, 0; };
    d_.copy_async = [](cuda::Address to, cuda::Address from, std::size_t n, cuda::Stream) {
      ++fake->copies;
      fake->largest_copy = std::max(fake->largest_copy, n);
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
      fake->not_ready = fake->busy_queries;
      return 0;
    };
    d_.stream_query = [](cuda::Stream) {
      if (fake->broken_stream) return 719;
      return fake->not_ready-- > 0 ? cuda::kNotReady : 0;
    };
    cuda::set_driver_for_test(&d_);
  }
  ~FakeDriver() {
    cuda::set_driver_for_test(nullptr);
    fake = nullptr;
  }
  bool all_given_back() const {
    return state_.device.empty() && state_.pinned.empty() && state_.contexts == 0 &&
           state_.streams == 0;
  }
  FakeCuda& state() { return state_; }

 private:
  FakeCuda state_;
  cuda::Driver d_;
};

std::vector<std::uint8_t> counted(std::size_t n) {
  std::vector<std::uint8_t> bytes(n);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{3});
  return bytes;
}

const std::uint8_t* memory_of(const DeviceBlock& block) {
  return reinterpret_cast<const std::uint8_t*>(block.device_address());
}

bool all_zero(const DeviceBlock& block) {
  const std::uint8_t* p = memory_of(block);
  return std::all_of(p, p + block.bytes(), [](std::uint8_t b) { return b == 0; });
}

// What every block promises, whatever it is made of.
void check_block(DeviceBlock& block, std::size_t bytes) {
  CHECK(block.bytes() == bytes);
  CHECK(block.device_address() % 4096 == 0);
  CHECK(all_zero(block));
  const auto data = counted(bytes);
  CHECK(block.copy_in(0, data.data(), bytes) == Status::ok);
  CHECK(std::memcmp(memory_of(block), data.data(), bytes) == 0);
  CHECK(block.copy_in(bytes - 1, data.data(), 1) == Status::ok);
  CHECK(memory_of(block)[bytes - 1] == data[0]);
  CHECK(block.copy_in(bytes, nullptr, 0) == Status::ok);
  CHECK(block.copy_in(bytes - 1, data.data(), 2) == Status::internal);
  CHECK(block.copy_in(bytes + 1, data.data(), 0) == Status::internal);
  CHECK(block.copy_in(SIZE_MAX, data.data(), 2) == Status::internal);
}

}  // namespace

TEST_CASE("without a GPU both places are zeroed, aligned host memory") {
  LogCapture log;
  for (const Place place : {Place::gpu, Place::shared}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, std::size_t{300000}}) {
      for (const int gpu : {-1, 0}) {  // no driver in this program either
        auto block = DeviceBlock::make(gpu, place, bytes);
        REQUIRE(block);
        CHECK((*block)->host() == memory_of(**block));
        check_block(**block, bytes);
      }
    }
  }
  CHECK(DeviceBlock::make(-1, Place::gpu, 0).status() == Status::internal);
}

TEST_CASE("GPU memory is zeroed and filled by copies through a pinned stage, and given back") {
  LogCapture log;
  FakeDriver driver;
  for (const int busy : {0, 3, 1500}) {
    driver.state().busy_queries = busy;
    auto one = DeviceBlock::make(0, Place::gpu, 100);
    auto two = DeviceBlock::make(0, Place::gpu, 200000);
    auto other = DeviceBlock::make(1, Place::gpu, 4096);
    REQUIRE(one);
    REQUIRE(two);
    REQUIRE(other);
    CHECK((*one)->host() == nullptr);
    CHECK(driver.state().streams == 2);  // one a GPU
    check_block(**one, 100);
    check_block(**two, 200000);
    check_block(**other, 4096);
  }
  CHECK(driver.state().largest_copy <= 65536);
  CHECK(driver.all_given_back());
}

TEST_CASE("shared memory is pinned and has one address for CPU and GPU") {
  LogCapture log;
  FakeDriver driver;
  {
    auto block = DeviceBlock::make(1, Place::shared, 70000);
    REQUIRE(block);
    CHECK((*block)->host() == memory_of(**block));
    check_block(**block, 70000);
    CHECK(driver.state().copies == 0);
    CHECK(driver.state().pinned.size() == 1);
  }
  CHECK(driver.all_given_back());
  driver.state().other_address = true;
  CHECK(DeviceBlock::make(1, Place::shared, 70000).status() == Status::unsupported);
  CHECK(log.has(LogLevel::warn, "another address"));
  CHECK(driver.all_given_back());
}

TEST_CASE("a GPU that does not exist, has no memory or has failed is named, and nothing is kept") {
  LogCapture log;
  FakeDriver driver;
  CHECK(DeviceBlock::make(7, Place::gpu, 10).status() == Status::system);
  CHECK(log.has(LogLevel::warn, "GPU 7: no context"));
  driver.state().no_memory = true;
  CHECK(DeviceBlock::make(0, Place::gpu, 10).status() == Status::system);
  CHECK(DeviceBlock::make(0, Place::shared, 10).status() == Status::system);
  CHECK(log.has(LogLevel::warn, "GPU 0: allocation"));
  driver.state().no_memory = false;
  CHECK(driver.all_given_back());
  driver.state().broken_stream = true;
  CHECK(DeviceBlock::make(0, Place::gpu, 10).status() == Status::system);
  CHECK(log.has(LogLevel::warn, "FAKE_ERROR"));
  // The stage stays, because the copy may still read it; the GPU's memory does not.
  CHECK(driver.state().device.empty());
  CHECK(driver.state().contexts == 0);
  for (auto& [at, memory] : driver.state().pinned) std::free(memory);
}

TEST_CASE("what cannot be freed in time is freed behind the caller, with all that it holds") {
  struct Seen {
    std::atomic<bool> kernels_run{true}, freed{false};
  };
  const auto seen = std::make_shared<Seen>();
  const auto memory = std::make_shared<int>(1);
  CHECK_FALSE(free_behind(
      [seen, memory] {
        seen->kernels_run.wait(true);
        seen->freed = true;
      },
      10'000'000));
  CHECK_FALSE(seen->freed);
  CHECK(memory.use_count() == 2);
  seen->kernels_run = false;
  seen->kernels_run.notify_all();
  for (int i = 0; i < 1000 && memory.use_count() != 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(seen->freed);
  CHECK(memory.use_count() == 1);
  CHECK(free_behind([memory] {}));
  CHECK(memory.use_count() == 1);
}

}  // namespace twinpath::gda
