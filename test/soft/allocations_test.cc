// Registered CUDA allocations: ids, users, and what is made of them for copies here and elsewhere.
#include "plugin/fabric/soft/allocations.h"

#include "test/soft/gpu_page.h"

using namespace twinpath;
using namespace twinpath::test;
using soft::Allocations;

namespace {

// Memory that cannot be mapped: no GPU has it.
gpu::PointerInfo nowhere(std::uint64_t base, std::uint64_t bytes) {
  return {gpu::MemoryKind::host, -1, base, bytes};
}

bool is_none(const std::shared_ptr<const gpu::ExportedAllocation>& e) {
  REQUIRE(e != nullptr);
  return e->kind == gpu::ExportedAllocation::Kind::none;
}

}  // namespace

TEST_CASE("allocations: one id each while it has users", "[soft]") {
  Allocations all;
  const std::uint64_t a = all.acquire(nowhere(4096, 4096)), b = all.acquire(nowhere(4096, 8192)),
                      c = all.acquire(nowhere(8192, 4096));
  CHECK(a != 0);
  CHECK((a != b && b != c && a != c));
  CHECK(all.acquire(nowhere(4096, 4096)) == a);
  CHECK_FALSE(all.release(a));
  CHECK(all.release(a));
  CHECK_FALSE(all.release(a));  // nobody has it
  const std::uint64_t again = all.acquire(nowhere(4096, 4096));
  CHECK((again != a && again != b && again != c));  // peers may still think of the old one
  CHECK(all.release(b));
}

TEST_CASE("allocations: what cannot be mapped is refused to all", "[soft]") {
  Allocations all;
  const std::uint64_t a = all.acquire(nowhere(4096, 4096));
  for (int i = 0; i < 2; ++i) {
    bool failed = false;
    CHECK(all.mapping(a, failed) == nullptr);
    CHECK(failed);
    CHECK(is_none(all.exported(a)));
  }
  bool failed = false;
  CHECK(all.mapping(a + 1, failed) == nullptr);
  CHECK(failed);
  CHECK(is_none(all.exported(a + 1)));
}

TEST_CASE("allocations: GPU memory is mapped once, and not longer than it is used",
          "[soft][cuda]") {
  FakeGpu gpu;
  Pair p({}, with_cuda());
  GpuPage page(gpu, p.b);
  Allocations all;
  const std::uint64_t a =
      all.acquire(gpu::inspect_pointer(reinterpret_cast<const void*>(page.address())));
  bool failed = false;
  const auto mapping = all.mapping(a, failed);
  REQUIRE(mapping != nullptr);
  CHECK_FALSE(failed);
  CHECK(all.mapping(a, failed) == mapping);
  CHECK(mapping.use_count() == 2);
  CHECK(all.release(a));
  CHECK(mapping.use_count() == 1);
}
