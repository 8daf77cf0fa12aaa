// What the kernel refuses of a registration, refused here: as a table of the rules, and by the
// calls.
#include <sys/mman.h>
#include <unistd.h>

#include "plugin/base/page_size.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/soft/uverbs_rules.h"
#include "test/soft/gpu_page.h"

using namespace twinpath;
using namespace twinpath::soft;
using namespace twinpath::test;

namespace {

constexpr std::uint64_t k4 = 4096, k64 = 65536;
constexpr unsigned kNone = 0, kLocal = IBV_ACCESS_LOCAL_WRITE, kWrite = IBV_ACCESS_REMOTE_WRITE,
                   kRead = IBV_ACCESS_REMOTE_READ, kAtomic = IBV_ACCESS_REMOTE_ATOMIC,
                   kOptional = 1u << 29, kUnknown = 1u << 15;
constexpr std::uint64_t kTop = ~std::uint64_t{0};

// Anonymous pages, the middle one read-only or gone where asked for.
class Mapping {
 public:
  explicit Mapping(std::size_t pages, int protection = PROT_READ | PROT_WRITE)
      : bytes_(pages * page()),
        at_(mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(at_ != MAP_FAILED);
  }
  ~Mapping() { munmap(at_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
  char* at(std::size_t offset = 0) { return static_cast<char*>(at_) + offset; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* at_;
};

// 0, or errno.
int registered(Side& side, void* data, std::size_t bytes, std::uint64_t iova, unsigned access) {
  errno = 0;
  ibv_mr* const mr = side.verbs.reg_mr_iova2(side.pd, data, bytes, iova, access);
  if (mr == nullptr) return errno;
  CHECK(side.verbs.dereg_mr(mr) == 0);
  return 0;
}
int registered(Side& side, void* data, std::size_t bytes, unsigned access) {
  return registered(side, data, bytes, reinterpret_cast<std::uintptr_t>(data), access);
}

int as_umem(Side& side, void* address, std::size_t bytes, unsigned access = kLocal,
            std::uint64_t page_sizes = 4096) {
  std::string why;
  const Mlx5 mlx5 = *load_mlx5(FabricKind::soft, why);
  mlx5dv_devx_umem_in in{};
  in.addr = address;
  in.size = bytes;
  in.access = access;
  in.pgsz_bitmap = page_sizes;
  errno = 0;
  mlx5dv_devx_umem* const umem = mlx5.devx_umem_reg_ex(side.context, &in);
  if (umem == nullptr) return errno;
  CHECK(mlx5.devx_umem_dereg(umem) == 0);
  return 0;
}

}  // namespace

TEST_CASE("the kernel's rules of a registration, in its order", "[soft]") {
  struct Case {
    Registered r;
    std::uint64_t page;
    int memory, dmabuf;
  };
  const Case cases[] = {
      {{0x10000, 4096, 0x10000, kLocal}, k4, 0, 0},
      {{0x10040, 8, 0x40, kLocal}, k4, 0, 0},  // one place in the page
      {{0x10040, 8, 0, kLocal}, k4, EINVAL, EINVAL},
      {{0x11000, 8, 0, kLocal}, k4, 0, 0},
      {{0x11000, 8, 0, kLocal}, k64, EINVAL, EINVAL},  // 4 KiB into a page of 64
      {{0x20000, 8, 0, kLocal}, k64, 0, 0},
      {{0x10040, 8, 0, kUnknown}, k4, EINVAL, EINVAL},
      {{0x10000, 8, 0, kNone}, k4, 0, 0},
      {{0x10000, 8, 0, kRead}, k4, 0, 0},
      {{0x10000, 8, 0, kWrite}, k4, EINVAL, EINVAL},
      {{0x10000, 8, 0, kAtomic | kRead}, k4, EINVAL, EINVAL},
      {{0x10000, 8, 0, kWrite | kAtomic | kRead | kLocal}, k4, 0, 0},
      {{0x10000, 8, 0, kLocal | kUnknown}, k4, EINVAL, EINVAL},
      {{0x10000, 8, 0, kLocal | kOptional}, k4, 0, EINVAL},
      {{0x10000, 8, 0, kLocal | IBV_ACCESS_RELAXED_ORDERING}, k4, 0, 0},
      {{0x10000, 8, 0, kLocal | IBV_ACCESS_MW_BIND}, k4, 0, EINVAL},
      {{0x10000, 8, 0, kLocal | IBV_ACCESS_HUGETLB}, k4, 0, EINVAL},
      {{0x10000, 8, 0, kLocal | IBV_ACCESS_ON_DEMAND}, k4, EOPNOTSUPP, EINVAL},
      {{0x10000, 8, 0, kLocal | kAccessFlush}, k4, EOPNOTSUPP, EINVAL},
      {{0x10000, 0, 0, kLocal}, k4, EINVAL, 0},  // a dma-buf is looked at first
      {{0x10000, kTop, 0, kLocal}, k4, EINVAL, EINVAL},
      {{0x10000, kTop - 0x10000, 0, kLocal}, k4, EINVAL, 0},  // its last page ends beyond
  };
  for (const Case& c : cases) {
    CAPTURE(c.r.start, c.r.bytes, c.r.iova, c.r.access, c.page);
    CHECK(refuse_memory(c.r, c.page) == c.memory);
    CHECK(refuse_dmabuf(c.r, c.page) == c.dmabuf);
  }
  CHECK(refuse_dmabuf_range({0, 4096, 0, 0}, 4096) == 0);
  CHECK(refuse_dmabuf_range({4096, 1, 0, 0}, 4096) == EINVAL);
  CHECK(refuse_dmabuf_range({1, 4096, 1, 0}, 4096) == EINVAL);
  CHECK(refuse_dmabuf_range({kTop, 2, 0, 0}, 4096) == EINVAL);
  CHECK(refuse_dmabuf_range({0, 0, 0, 0}, 4096) == EINVAL);
  CHECK(refuse_umem(kLocal, 4096, k4) == 0);
  CHECK(refuse_umem(kAtomic | kLocal, 4096, k4) == EINVAL);
  CHECK(refuse_umem(kWrite, 4096, k4) == EINVAL);
  CHECK(refuse_umem(kLocal, 0, k4) == EINVAL);
  CHECK(refuse_umem(kLocal, 2048, k4) == EINVAL);
  CHECK(refuse_umem(kLocal, k64, k4) == EINVAL);
  CHECK(refuse_umem(kLocal, k64, k64) == 0);
  CHECK(refuse_umem(kLocal, k4, k64) == 0);
}

TEST_CASE("memory is registered at an iova of the same place in a page", "[soft]") {
  Side side{Options{}};
  Mapping memory(4);
  const std::size_t page = memory.page();
  CHECK(registered(side, memory.at(), page, 0, kLocal) == 0);
  CHECK(registered(side, memory.at(64), 8, 0, kLocal) == EINVAL);
  CHECK(registered(side, memory.at(64), 8, 64, kLocal) == 0);
  CHECK(registered(side, memory.at(64), 8, page, kLocal) == EINVAL);
  CHECK(registered(side, memory.at(), 0, kLocal) == EINVAL);
  const PageSizeForTest other(k64);
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(memory.at(page)) & (k64 - 1);
  CHECK(registered(side, memory.at(page), 8, place, kLocal) == 0);
  CHECK(registered(side, memory.at(page), 8, place ^ page, kLocal) == EINVAL);
}

TEST_CASE("pages must be there, all of them, and for writing where somebody may write", "[soft]") {
  Side side{Options{}};
  for (const unsigned access : {kLocal, kLocal | kWrite, unsigned{IBV_ACCESS_MW_BIND}}) {
    for (const std::size_t at : {0u, 3u, 7u}) {
      CAPTURE(access, at);
      Mapping memory(8);
      const std::size_t page = memory.page();
      CHECK(registered(side, memory.at(), memory.bytes(), access) == 0);
      REQUIRE(mprotect(memory.at(at * page), page, PROT_READ) == 0);
      CHECK(registered(side, memory.at(), memory.bytes(), access) == EFAULT);
      CHECK(registered(side, memory.at(at * page + 8), 8, access) == EFAULT);
      CHECK(registered(side, memory.at(), memory.bytes(), kRead) == 0);
      CHECK(as_umem(side, memory.at(), memory.bytes()) == EFAULT);
      REQUIRE(munmap(memory.at(at * page), page) == 0);
      CHECK(registered(side, memory.at(), memory.bytes(), access) == EFAULT);
      CHECK(registered(side, memory.at(), memory.bytes(), kRead) == EFAULT);
      CHECK(as_umem(side, memory.at(at * page), page) == EFAULT);
    }
  }
}

TEST_CASE("a umem is memory that could be registered, in pages that the host has", "[soft]") {
  Side side{Options{}};
  Mapping memory(4);
  CHECK(as_umem(side, memory.at(), memory.bytes()) == 0);
  CHECK(as_umem(side, memory.at(64), 128) == 0);  // its place in the page goes with it
  CHECK(as_umem(side, memory.at(), 0) == EINVAL);
  CHECK(as_umem(side, memory.at(), ~std::size_t{0} - 64) == EINVAL);
  CHECK(as_umem(side, memory.at(), 4096, kWrite) == EINVAL);
  CHECK(as_umem(side, memory.at(), 4096, kLocal | kAtomic) == EINVAL);
  CHECK(as_umem(side, memory.at(), 4096, kLocal, 2 * memory.page()) == EINVAL);
  const PageSizeForTest other(k64);
  CHECK(as_umem(side, memory.at(), 4096, kLocal, k64) == 0);
}

namespace {

// A process has one soft HCA, whose adapters are as the first user of it wants them.
void gpu_memory_by_address(bool peermem) {
  FakeGpu gpu;
  Config config = with_cuda();
  if (peermem) config.soft_hcas = "soft0,peermem=yes";
  Side side(Options{}, config);
  GpuPage page(gpu, side);
  REQUIRE(page.mr != nullptr);
  auto* const data = reinterpret_cast<void*>(page.address());
  CHECK(registered(side, data, 4096, kLocal) == (peermem ? 0 : EFAULT));
  CHECK(as_umem(side, data, 4096) == (peermem ? 0 : EFAULT));
}

}  // namespace

TEST_CASE("GPU memory is registered by dma-buf, not by its address", "[soft][cuda]") {
  gpu_memory_by_address(false);
}

TEST_CASE("GPU memory is registered by its address, too, where there is peermem", "[.peermem]") {
  gpu_memory_by_address(true);
}

TEST_CASE("a dma-buf is registered within its size, at an iova of the same place in a page",
          "[soft][cuda]") {
  FakeGpu gpu;
  Side side(Options{}, with_cuda());
  GpuPage page(gpu, side, kLocal, 2 * page_size());
  const UniqueFd fd(gpu::export_dmabuf(page.address(), 2 * page_size()));
  REQUIRE(fd);
  const auto take = [&](std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int from,
                        unsigned access = kLocal) {
    errno = 0;
    ibv_mr* const mr =
        side.verbs.reg_dmabuf_mr(side.pd, offset, bytes, iova, from, static_cast<int>(access));
    if (mr == nullptr) return errno;
    CHECK(side.verbs.dereg_mr(mr) == 0);
    return 0;
  };
  const std::size_t size = page_size();
  CHECK(take(0, 2 * size, 0, fd.get()) == 0);
  CHECK(take(size, size, 0, fd.get()) == 0);
  CHECK(take(64, 8, 0, fd.get()) == EINVAL);
  CHECK(take(64, 8, 64, fd.get()) == 0);
  CHECK(take(64, 2 * size, 64, fd.get()) == EINVAL);
  CHECK(take(0, 0, 0, fd.get()) == EINVAL);
  CHECK(take(0, size, 0, fd.get(), kWrite) == EINVAL);
  CHECK(take(0, size, 0, fd.get(), kLocal | IBV_ACCESS_HUGETLB) == EINVAL);
  // Of somebody else's, which the kernel knows to be no longer than it is; and no dma-buf at all.
  const UniqueFd other(memfd_create("another", MFD_CLOEXEC));
  REQUIRE(ftruncate(other.get(), static_cast<off_t>(size)) == 0);
  CHECK(take(0, size, page.address(), other.get()) == 0);
  CHECK(take(0, 2 * size, page.address(), other.get()) == EINVAL);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const UniqueFd in(ends[0]), out(ends[1]);
  CHECK(take(0, size, page.address(), in.get()) == EINVAL);
  CHECK(take(0, size, page.address(), -1) == EBADF);
}
