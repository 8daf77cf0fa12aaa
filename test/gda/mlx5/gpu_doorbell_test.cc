// Doorbells as the GPU sees them: pages that contexts share, mapped once and let go by the last.
#include "gda/adapter/mlx5/gpu_doorbell.h"

#include <map>

#include "plugin/gpu/driver.h"
#include "test/gda/mlx5/hooked.h"

using namespace twinpath;
using namespace twinpath::gda::mlx5;
using namespace twinpath::test;

namespace {

namespace cuda = gpu::cuda;

// A driver that maps memory of the host: it answers 712 for what overlaps something mapped, by the
// page or (as seen on an H100) by the range.
struct Mappings {
  bool by_page = true;
  int refusal = 0;
  std::map<std::uintptr_t, std::size_t> ranges;
  int mapped = 0, let_go = 0;
  unsigned flags = 0;
};
Mappings mappings;

std::uintptr_t page_of(std::uintptr_t at) { return at / 4096; }

bool known(std::uintptr_t at, std::size_t bytes) {
  for (const auto& [begin, size] : mappings.ranges) {
    if (mappings.by_page
            ? page_of(at) <= page_of(begin + size - 1) && page_of(begin) <= page_of(at + bytes - 1)
            : at < begin + size && begin < at + bytes)
      return true;
  }
  return false;
}

struct FakeDriver {
  FakeDriver(bool by_page) {
    mappings = {};
    mappings.by_page = by_page;
    d.primary_retain = [](cuda::Context*, cuda::Device) { return 0; };
    d.primary_release = [](cuda::Device) { return 0; };
    d.ctx_push = [](cuda::Context) { return 0; };
    d.ctx_pop = [](cuda::Context*) { return 0; };
    d.exchange_capture_mode = [](int*) { return 0; };
    d.get_error_name = [](cuda::Result, const char** name) { return *name = "REFUSED", 0; };
    d.host_register = [](void* at, std::size_t bytes, unsigned flags) {
      if (mappings.refusal != 0) return mappings.refusal;
      const auto begin = reinterpret_cast<std::uintptr_t>(at);
      if (known(begin, bytes)) return 712;
      mappings.ranges[begin] = bytes;
      mappings.flags = flags;
      return ++mappings.mapped, 0;
    };
    d.host_unregister = [](void* at) {
      if (mappings.ranges.erase(reinterpret_cast<std::uintptr_t>(at)) == 0) return 713;
      return ++mappings.let_go, 0;
    };
    d.host_device_pointer = [](cuda::Address* out, void* at, unsigned) {
      const auto begin = reinterpret_cast<std::uintptr_t>(at);
      return *out = begin + (std::uint64_t{1} << 52), known(begin, 8) ? 0 : 1;
    };
    cuda::set_driver_for_test(&d);
  }
  ~FakeDriver() { cuda::set_driver_for_test(nullptr); }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  cuda::Driver d;
};

std::unique_ptr<GpuDoorbell> map(void* bell) {
  std::string why;
  auto made = GpuDoorbell::map(0, bell, true, why);
  CAPTURE(why);
  CHECK(made != nullptr);
  return made;
}

// Pages as two contexts of one adapter, or two communicators, have them.
struct TwoPages : Hooked {
  explicit TwoPages(const std::string& variant) : Hooked(variant) {
    REQUIRE(open() == Status::ok);
    for (auto* page : {&one, &other}) {
      auto made = DoorbellPage::make(*driven);
      REQUIRE(made);
      *page = std::make_unique<DoorbellPage>(std::move(made).take());
    }
  }
  std::unique_ptr<DoorbellPage> one, other;
};

}  // namespace

TEST_CASE("two contexts at once ring from the GPU, whatever page they were given") {
  if (on_libraries()) return;
  const std::string variant = GENERATE("", "shared-page");
  const bool by_page = GENERATE(true, false);
  TwoPages pages(variant);
  FakeDriver driver(by_page);  // the software HCA would use it
  const auto difference =
      static_cast<char*>(pages.other->bell()) - static_cast<char*>(pages.one->bell());
  CHECK(difference == (variant.empty() ? 0x100 : 0));
  auto first = map(pages.one->bell());
  auto second = map(pages.other->bell());
  CHECK(mappings.mapped == 1);
  CHECK(mappings.flags == 7);
  CHECK(second->address() - first->address() == static_cast<std::uint64_t>(difference));
  first.reset();
  CHECK(mappings.let_go == 0);  // the other's kernels may ring
  first = map(pages.one->bell());
  second.reset();
  CHECK(mappings.let_go == 0);
  first.reset();
  CHECK(mappings.let_go == 1);
  CHECK(mappings.ranges.empty());
  first = map(pages.one->bell());  // and anew
  CHECK(mappings.mapped == 2);
}

TEST_CASE("a page that somebody else of the process has mapped is used, and not unmapped") {
  alignas(4096) static std::uint8_t page[4096];
  FakeDriver driver(true);
  REQUIRE(driver.d.host_register(page + 0x800, 8, 3) == 0);
  auto bell = map(page + 0x800);
  bell.reset();
  CHECK(mappings.let_go == 0);
  CHECK(driver.d.host_unregister(page + 0x800) == 0);
}

TEST_CASE("a doorbell that the GPU may not ring is told with what to do") {
  alignas(4096) static std::uint8_t page[4096];
  {
    FakeDriver driver(true);
    std::string why;
    mappings.refusal = 800;
    CHECK(GpuDoorbell::map(0, page, true, why) == nullptr);
    CHECK(why.find("(REFUSED)") != std::string::npos);
    CHECK(why.find("PeerMappingOverride=1") != std::string::npos);
    mappings.refusal = 0;
    CHECK(map(page) != nullptr);  // nothing is remembered of it
  }
  CHECK(doorbell_refusal(1, "CUDA_ERROR_INVALID_VALUE").find("ordinary memory") !=
        std::string::npos);
  CHECK(doorbell_refusal(999, "CUDA error 999").find("(CUDA error 999)") != std::string::npos);
  std::string why;
  CHECK(GpuDoorbell::map(0, page, true, why) == nullptr);  // no driver
  CHECK(why.find("cuMemHostRegister") != std::string::npos);
}
