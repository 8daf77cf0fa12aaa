// GDRCopy by a stand-in for its library: what is refused and why, its rules, and CQs in GPU memory
// that the engine stores to.
#include "plugin/gpu/gdrcopy.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "test/gda/gpu_cq_rig.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

namespace twinpath::gda {
namespace {

using gpu::GdrMapping;
using gpu::kGdrPage;
using test::GdrStandIn;
using test::LogCapture;

// Sanitizer builds have only what their tests depend on, and clang's does not let functions be
// called by types of another's.
bool stand_in_is_built() {
  const char* const path = std::getenv("TWINPATH_TEST_GDRAPI");
  return path != nullptr && ::access(path, R_OK) == 0;
}

// The stand-in in the library's place, as it is when nothing has happened.
class StandIn {
 public:
  StandIn() {
    const char* const path = std::getenv("TWINPATH_TEST_GDRAPI");
    REQUIRE(path != nullptr);
    library_ = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library_ != nullptr);
    const auto get = reinterpret_cast<test::GetGdrStandIn>(::dlsym(library_, test::kGetGdrStandIn));
    REQUIRE(get != nullptr);
    state_ = get();
    *state_ = GdrStandIn{};
    (void)get();  // which sets what it is to be told of
    gpu::set_gdrapi_for_test(path);
    SlowGpu::gdrcopy = state_;
  }
  ~StandIn() {
    SlowGpu::gdrcopy = nullptr;
    gpu::set_gdrapi_for_test(nullptr);
    CHECK(state_->broken == "");
    CHECK(state_->opened == 0);
    CHECK(state_->pinned == 0);
    CHECK(state_->mapped == 0);
    ::dlclose(library_);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  GdrStandIn* operator->() const { return state_; }

 private:
  void* library_ = nullptr;
  GdrStandIn* state_ = nullptr;
};

// An allocation of that GPU, from a whole page of it on.
class Allocation {
 public:
  Allocation(const StandIn& stand_in, std::size_t bytes) : stand_in_(stand_in) {
    cuda::Address p = 0;
    REQUIRE(cuda::driver()->mem_alloc(&p, bytes + kGdrPage) == 0);
    base_ = p;
  }
  ~Allocation() { (void)cuda::driver()->mem_free(base_); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  std::uint64_t page() const { return gpu::gdr_page_end(base_); }

 private:
  const StandIn& stand_in_;
  cuda::Address base_ = 0;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What MappedCq stores, in place of storing it.
struct Recorded {
  struct Step {
    std::size_t at = 0;  // of a word; 0: a fence, for no word of a CQE is there
    std::uint64_t value = 0;
    friend bool operator==(const Step&, const Step&) = default;
  };
  static inline std::vector<Step> steps;
  static inline std::uint8_t* first = nullptr;
  static void word(std::uint8_t* at, std::uint64_t value) {
    steps.push_back({static_cast<std::size_t>(at - first), value});
  }
  static void fence() { steps.push_back({}); }
};

}  // namespace

TEST_CASE("Where GDRCopy cannot be used it is said why") {
  SlowGpu gpu;
  SECTION("it is not installed") {
    gpu::set_gdrapi_for_test("/nowhere/libgdrapi.so.2");
    const gpu::GdrState state = gpu::gdrcopy_state();
    CHECK_FALSE(state.usable);
    CHECK(contains(state.text, "GDRCopy is not installed (/nowhere/libgdrapi.so.2"));
  }
  SECTION("a library that has none of its functions") {
    gpu::set_gdrapi_for_test("libm.so.6");
    const gpu::GdrState state = gpu::gdrcopy_state();
    CHECK_FALSE(state.usable);
    CHECK(state.text == "libm.so.6 is older than GDRCopy 2.0");
  }
  gpu::set_gdrapi_for_test(nullptr);

  CHECK(contains(gpu::gdrdrv_refusal(ENOENT), "not loaded (modprobe gdrdrv)"));
  CHECK(contains(gpu::gdrdrv_refusal(EACCES), "no permission to open /dev/gdrdrv"));
  CHECK(contains(gpu::gdrdrv_refusal(EPERM), "no permission to open /dev/gdrdrv"));
  CHECK(contains(gpu::gdrdrv_refusal(0), "does not work with this gdrdrv"));
  CHECK(contains(gpu::gdrdrv_refusal(EIO), "cannot be opened: Input/output error"));
}

TEST_CASE("What GDRCopy refuses leaves nothing pinned, mapped or open") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  struct Case {
    const char* what;
    std::function<void(GdrStandIn&)> change;
    const char* why;
    bool found = true;  // gdrcopy_state() does not see it
  };
  const Case cases[] = {
      {"no module", [](GdrStandIn& s) { s.module_loaded = false; }, "libgdrapi 2.6: ", false},
      {"an old driver", [](GdrStandIn& s) { s.driver_major = 1, s.driver_minor = 3; },
       "libgdrapi 2.6, gdrdrv 1.3: gdrdrv is older than 2.0", false},
      {"a driver without a version", [](GdrStandIn& s) { s.version_error = ENOTTY; },
       "gdrdrv does not tell its version", false},
      {"no permission", [](GdrStandIn& s) { s.pin_error = EACCES; },
       "libgdrapi 2.6, gdrdrv 2.4: it may not pin GPU memory: Permission denied"},
      {"no room", [](GdrStandIn& s) { s.pin_error = ENOMEM; }, "BAR1 is full"},
      {"memory that it does not know", [](GdrStandIn& s) { s.allocations.clear(); },
       "it cannot pin GPU memory: Invalid argument"},
      {"no mapping", [](GdrStandIn& s) { s.map_error = EIO; },
       "it cannot map GPU memory: Input/output error"},
      {"no information", [](GdrStandIn& s) { s.info_error = EINVAL; }, "does not tell what"},
      {"another place", [](GdrStandIn& s) { s.info_shift = kGdrPage; }, "does not tell what"},
      {"less than was asked for", [](GdrStandIn& s) { s.info_shift = std::uint64_t{0} - kGdrPage; },
       "does not tell what"},
  };
  SlowGpu gpu;
  for (const Case& c : cases) {
    INFO(c.what);
    const StandIn stand_in;
    const Allocation memory(stand_in, kGdrPage);
    c.change(*stand_in.operator->());
    std::string why;
    CHECK(GdrMapping::map(memory.page(), 100, why) == nullptr);
    CHECK(contains(why, c.why));
    CHECK(gpu::gdrcopy_state().usable == c.found);
    if (!c.found) CHECK(contains(gpu::gdrcopy_state().text, c.why));
  }
}

TEST_CASE("A mapping is the GPU's memory, in whole pages of one allocation") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  SlowGpu gpu;
  const StandIn stand_in;
  const Allocation memory(stand_in, 2 * kGdrPage);
  auto* const seen = reinterpret_cast<std::uint8_t*>(memory.page());
  std::string why;
  SECTION("by gdrdrv") { CHECK(gpu::gdrcopy_state().text == "libgdrapi 2.6, gdrdrv 2.4"); }
  SECTION("by dma-buf, where there is no version to ask for") {
    stand_in->by_dma_buf = true;
    CHECK(gpu::gdrcopy_state().text == "libgdrapi 2.6 without gdrdrv, by dma-buf");
  }
  {
    const auto two = GdrMapping::map(memory.page(), kGdrPage + 1, why);
    REQUIRE(two != nullptr);
    CHECK(two->data() != seen);
    two->data()[kGdrPage] = 7;
    seen[3] = 9;
    CHECK(seen[kGdrPage] == 7);
    CHECK(two->data()[3] == 9);
    CHECK(stand_in->opened == 1);
  }
  CHECK(stand_in->opened == 0);
  CHECK(GdrMapping::map(memory.page() + 64, 64, why) == nullptr);
  CHECK(contains(why, "does not begin with a page"));
  CHECK(GdrMapping::map(memory.page(), 0, why) == nullptr);
}

TEST_CASE("Threads that map and unmap share one connection, and call one at a time") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  SlowGpu gpu;
  const StandIn stand_in;
  const Allocation memory(stand_in, 4 * kGdrPage);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        std::string why;
        const auto mapping = GdrMapping::map(memory.page() + t * kGdrPage, 64, why);
        if (mapping == nullptr) ++failed;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(stand_in->pins == 200);
}

TEST_CASE("Who maps while the last connection is being closed waits for that") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  SlowGpu gpu;
  const StandIn stand_in;
  const Allocation memory(stand_in, kGdrPage);
  stand_in->close_ms = 100;
  std::string why;
  auto first = GdrMapping::map(memory.page(), 64, why);
  REQUIRE(first != nullptr);
  std::thread closes([&] { first.reset(); });
  while (std::atomic_ref<int>(stand_in->closes).load() == 0) std::this_thread::yield();
  CHECK(GdrMapping::map(memory.page(), 64, why) != nullptr);  // the stand-in minds two at once
  closes.join();
}

TEST_CASE("Through a mapping a CQE's last word leaves after its syndrome, and before the next") {
  alignas(8) std::uint8_t cqes[2 * kCqeBytes] = {};
  Recorded::first = cqes;
  Recorded::steps.clear();
  std::uint8_t cqe[64] = {};
  cqe[63] = 0x10;
  MappedCq<Recorded> queue(cqes, 2);
  queue.write(0, cqe);
  cqe[55] = 0x04;
  queue.write(3, cqe);
  const std::vector<Recorded::Step> expected{{56, std::uint64_t{0x10} << 56},      {},
                                             {64 + 48, std::uint64_t{0x04} << 56}, {},
                                             {64 + 56, std::uint64_t{0x10} << 56}, {}};
  CHECK(Recorded::steps == expected);
}

TEST_CASE("Kernels see every CQE that the engine stores through GDRCopy, lap after lap") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  LogCapture log;
  SlowGpu gpu;
  const StandIn stand_in;
  {
    Queues all(3, 64, 4, true);
    REQUIRE(all.filled == Status::ok);
    CHECK(stand_in->mapped == 1);
    CHECK(all.memory->cq(0) == nullptr);
    REQUIRE(all.memory->cq_mapping(0) != nullptr);
    CHECK(all.memory->cq_address(0) % kGdrPage == 0);
    CHECK(all.cqe(5, 63)[63] == kCqeFill);
    gpu.pause(true);  // no copy brings them
    kernels_come_through(all, 4, 1000);
    gpu.pause(false);
    all.memory->free_gpu_memory();
    CHECK(stand_in->pinned == 0);
  }
  CHECK(log.has(LogLevel::info,
                "GPU 0: completions go to its memory through GDRCopy: libgdrapi 2.6, gdrdrv 2.4"));
  CHECK(log.warnings().empty());
}

TEST_CASE("An error CQE through GDRCopy has its syndrome") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  LogCapture log;
  SlowGpu gpu;
  const StandIn stand_in;
  Queues all(2, 16, 0, true);
  Producer<DeviceQp28> queue = all.kernel().queue_to(1);
  std::uint64_t first = 0;
  REQUIRE(queue.reserve(2, first) == 0);
  queue.write(0, make_write(0, queue.qpn(), 0, 0x00bad000, 0, 0x00bad000, 64));
  queue.write(1, make_nop(1, queue.qpn()));
  REQUIRE(queue.submit(first, 2) == 0);
  all.turn();
  CHECK(queue.poll(0) == -EIO);
  CHECK(cqe_syndrome(*reinterpret_cast<const CqeBytes*>(all.cqe(1, 0))) ==
        Syndrome::local_protection);
  CHECK(cqe_syndrome(*reinterpret_cast<const CqeBytes*>(all.cqe(1, 1))) == Syndrome::flushed);
}

TEST_CASE("GDRCopy is not used unless it is asked for") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  LogCapture log;
  SlowGpu gpu;
  const StandIn stand_in;
  const Queues all(2);
  CHECK(all.memory->cq(0) == nullptr);
  CHECK(all.memory->cq_mapping(0) == nullptr);
  CHECK(stand_in->pins == 0);
  CHECK_FALSE(log.has("GDRCopy"));
}

TEST_CASE("Without GDRCopy CQEs go by copies, and the log says why") {
  NEEDS(stand_in_is_built(), "the stand-in for GDRCopy is not built");
  LogCapture log;
  SlowGpu gpu;
  const StandIn stand_in;
  stand_in->pin_error = EPERM;
  {
    Queues all(2, 16, 0, true);
    REQUIRE(all.filled == Status::ok);
    CHECK(all.memory->cq_mapping(0) == nullptr);
    kernels_come_through(all, 2, 100);
  }
  CHECK(log.has(LogLevel::info,
                "by copies, not through GDRCopy: libgdrapi 2.6, gdrdrv 2.4: it may "
                "not pin GPU memory: Operation not permitted"));
  CHECK(log.warnings().empty());
}

}  // namespace twinpath::gda
