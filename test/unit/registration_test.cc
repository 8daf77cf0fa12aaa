// How memory is registered, and what is said where it cannot be.
#include "plugin/fabric/registration.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "plugin/base/page_size.h"
#include "plugin/fabric/refusal.h"
#include "test/fabric/fake_gpu.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

// An adapter that refuses what it is told to.
struct Refusing {
  static inline int data_direct = 0, dmabuf = 0, address = 0;  // errno
  static inline bool strict = false;                           // EINVAL for relaxed ordering
  static inline std::string tried;
  static inline std::uint64_t offset = 0;

  static ibv_mr* answer(char way, int error, int access) {
    static ibv_mr mr{};
    const bool relaxed = (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    tried += relaxed ? static_cast<char>(way - 'a' + 'A') : way;
    errno = strict && relaxed ? EINVAL : error;
    return errno == 0 ? &mr : nullptr;
  }
  static Verbs table() {
    data_direct = dmabuf = address = 0;
    strict = false;
    tried.clear();
    Verbs v;
    v.reg_data_direct = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int access,
                           int) { return answer('p', data_direct, access); };
    v.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t at, std::size_t, std::uint64_t, int, int access) {
      offset = at;
      return answer('d', dmabuf, access);
    };
    v.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned access) {
      return answer('a', address, static_cast<int>(access));
    };
    return v;
  }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// GPU memory of some pages of 64 KiB.
struct GpuPages {
  static constexpr std::size_t kBytes = std::size_t{4} << 16;
  explicit GpuPages(test::FakeGpu& gpu)
      : gpu_(gpu), at(static_cast<char*>(std::aligned_alloc(65536, kBytes))) {
    gpu.own(at, kBytes);
  }
  ~GpuPages() {
    gpu_.disown(at);
    std::free(at);
  }
  GpuPages(const GpuPages&) = delete;
  GpuPages& operator=(const GpuPages&) = delete;
  RangeRequest range(std::size_t from, std::size_t bytes) const {
    RangeRequest r;
    r.address = r.iova = reinterpret_cast<std::uintptr_t>(at + from);
    r.bytes = bytes;
    r.access = IBV_ACCESS_LOCAL_WRITE;
    r.exported = r.by_address = true;
    return r;
  }

 private:
  test::FakeGpu& gpu_;

 public:
  char* const at;
};

TEST_CASE("GPU memory is registered by a dma-buf of whole pages around it, else by its address") {
  test::FakeGpu gpu;
  const Verbs v = Refusing::table();
  const std::size_t page = GENERATE(4096u, 65536u);
  const PageSizeForTest of_host(page);
  const GpuPages memory(gpu);
  RangeMr made = register_gpu_range(v, nullptr, memory.range(64, 100));
  CHECK(made.mr != nullptr);
  CHECK(made.way == GpuWay::dmabuf);
  CHECK(Refusing::tried == "d");
  CHECK(Refusing::offset == 64);
  CHECK(gpu.exports == 1);
  CHECK(gpu.export_flags == 0);
  CHECK(made.refused.empty());
  Refusing::dmabuf = EOPNOTSUPP;
  made = register_gpu_range(v, nullptr, memory.range(0, page));
  CHECK(made.mr != nullptr);
  CHECK(made.way == GpuWay::address);
  CHECK(has(made.refused, "by dma-buf: Operation not supported (errno 95)"));
  Refusing::address = EFAULT;
  made = register_gpu_range(v, nullptr, memory.range(0, page));
  CHECK(made.mr == nullptr);
  CHECK(made.error == EFAULT);
  CHECK(has(made.refused, "by its address: Bad address (errno 14)"));
  CHECK(has(made.refused, "takes no dma-buf"));
}

TEST_CASE("memory that is no GPU's has no dma-buf") {
  test::FakeGpu gpu;
  const Verbs v = Refusing::table();
  Refusing::address = EFAULT;
  std::vector<char> data(8192);
  RangeRequest r;
  r.address = reinterpret_cast<std::uintptr_t>(data.data());
  r.bytes = data.size();
  r.exported = r.by_address = true;
  const RangeMr made = register_gpu_range(v, nullptr, r);
  CHECK(made.mr == nullptr);
  CHECK(Refusing::tried == "a");
  CHECK(has(made.refused, "the GPU's driver exports none"));
  CHECK(has(made.refused, "load nvidia_peermem"));
}

TEST_CASE("the data-direct function gets a dma-buf of the mapping by PCIe, its neighbour another") {
  test::FakeGpu gpu;
  const Verbs v = Refusing::table();
  const GpuPages memory(gpu);
  RangeRequest r = memory.range(0, 4096);
  r.data_direct = true;
  RangeMr made = register_gpu_range(v, nullptr, r);
  CHECK(made.way == GpuWay::data_direct);
  CHECK(gpu.export_flags == 1);
  Refusing::data_direct = 524;
  made = register_gpu_range(v, nullptr, r);
  CHECK(made.mr != nullptr);
  CHECK(made.way == GpuWay::dmabuf);
  CHECK(made.data_direct_error == 524);
  CHECK(gpu.export_flags == 0);
  CHECK(Refusing::tried == "ppd");
  Refusing::data_direct = ENOMEM;  // no other way has more room
  CHECK(register_gpu_range(v, nullptr, r).mr == nullptr);
  CHECK(Refusing::tried == "ppdp");
}

TEST_CASE("relaxed ordering is given up where it is refused, in each way") {
  test::FakeGpu gpu;
  const Verbs v = Refusing::table();
  const GpuPages memory(gpu);
  RangeRequest r = memory.range(0, 4096);
  r.relaxed_ordering = true;
  CHECK(register_gpu_range(v, nullptr, r).relaxed_ordering);
  Refusing::strict = true;
  RangeMr made = register_gpu_range(v, nullptr, r);
  CHECK(made.mr != nullptr);
  CHECK_FALSE(made.relaxed_ordering);
  CHECK(Refusing::tried == "DDd");
  Refusing::tried.clear();
  made = register_host_range(v, nullptr, r);
  CHECK(made.mr != nullptr);
  CHECK_FALSE(made.relaxed_ordering);
  CHECK(Refusing::tried == "Aa");
}

TEST_CASE("each errno of each call has a cause that fits, and what to do") {
  using C = VerbsCall;
  struct Case {
    C call;
    int error;
    const char* with;     // memory that may be locked is limited
    const char* without;  // it is not
  };
  const Case cases[] = {
      {C::open, EMFILE, "ulimit -n", "ulimit -n"},
      {C::open, ENFILE, "fs.file-max", "fs.file-max"},
      {C::open, EACCES, "/dev/infiniband", "/dev/infiniband"},
      {C::open, EPERM, "/dev/infiniband", "/dev/infiniband"},
      {C::open, ENOENT, "ib_uverbs", "ib_uverbs"},
      {C::open, ENOSYS, "rdma-core", "rdma-core"},
      {C::open, EAGAIN, "rdma.max", "rdma.max"},
      {C::open, ENODEV, "dmesg", "dmesg"},
      {C::open, ENOMEM, "UARs", "UARs"},
      {C::alloc_pd, ENOMEM, "protection domain", "protection domain"},
      {C::alloc_pd, EAGAIN, "rdma.max", "rdma.max"},
      {C::create_cq, ENOMEM, "is 64 KiB; raise it", "max_cq"},
      {C::create_cq, EINVAL, "max_cqe", "max_cqe"},
      {C::create_qp, ENOMEM, "is 64 KiB; raise it", "max_qp"},
      {C::create_qp, EINVAL, "max_qp_wr", "max_qp_wr"},
      {C::create_qp, EAGAIN, "rdma.max", "rdma.max"},
      {C::register_host, ENOMEM, "is 64 KiB; raise it", "vm.max_map_count"},
      {C::register_host, EINVAL, "RDMAV_HUGEPAGES_SAFE=1", "RDMAV_HUGEPAGES_SAFE=1"},
      {C::register_host, EFAULT, "not mapped, or is read-only", "read-only"},
      {C::register_host, EPERM, "ulimit -l", "ulimit -l"},
      {C::register_host, EIO, "dmesg", "dmesg"},
      {C::register_gpu, EFAULT, "nvidia_peermem", "nvidia_peermem"},
      {C::register_gpu, EINVAL, "nvidia_peermem", "nvidia_peermem"},
      {C::register_gpu, ENOMEM, "is 64 KiB; raise it", "vm.max_map_count"},
      {C::register_dmabuf, EOPNOTSUPP, "takes no dma-buf", "takes no dma-buf"},
      {C::register_dmabuf, EINVAL, "IOMMU and ACS", "IOMMU and ACS"},
      {C::register_dmabuf, ENOMEM, "BAR1", "BAR1"},
  };
  for (const Case& c : cases) {
    CAPTURE(static_cast<int>(c.call), c.error);
    CHECK(has(remedy_of(c.call, c.error, {65536}), c.with));
    CHECK(has(remedy_of(c.call, c.error, {std::nullopt}), c.without));
    CHECK(remedy_of(c.call, c.error, {}).substr(0, 2) == "; ");
  }
  CHECK_FALSE(has(remedy_of(C::register_host, ENOMEM, {std::nullopt}), "raise it"));
  for (const C call : {C::create_cq, C::create_qp, C::register_host}) {
    CHECK(has(remedy_of(call, ENOMEM, {65536, "the limit of data"}), "raise the limit of data"));
    CHECK(has(remedy_of(call, ENOMEM, {65536, "the limit of data"}), "is 64 KiB; raise it"));
  }
  // Where another cause is as likely, the profile is named behind it.
  for (const C call : {C::open, C::alloc_pd, C::create_cq, C::create_qp, C::register_host})
    for (const int error : {EPERM, EACCES, ENOSYS})
      CHECK(has(remedy_of(call, error, {}), "seccomp"));
  for (const int error : {EMFILE, ENFILE})
    for (const char* wrong : {"infiniband", "ulimit -l"})
      CHECK_FALSE(has(remedy_of(C::open, error, {65536}), wrong));
  CHECK(remedy_of(C::alloc_pd, EXDEV, {}).empty());
}

}  // namespace
}  // namespace twinpath
