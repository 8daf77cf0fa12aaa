// The CUDA engine of the soft HCA on a real GPU: pointers, copies, order, sharing between
// processes; and the figures that say whether it is fast.
//
// The cases "peer process ..." are run in a child: the same program started anew, with the
// socket's number in TWINPATH_TEST_PEER_FD, as CUDA does not survive a fork.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "plugin/base/clock.h"
#include "test/gpu/gpu_memory.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

namespace twinpath::gpu {
namespace {

using test::from_gpu;
using test::GpuMemory;
using test::Kind;
using test::PinnedMemory;
using test::to_gpu;

struct Job : CopyJob {
  std::atomic<bool> finished{false};
  Status status = Status::again;
  std::size_t index = 0;
  std::vector<std::size_t>* log = nullptr;
};

void fill(Job& job, CopyEnd to, CopyEnd from, std::uint64_t bytes, std::uint64_t order = 1) {
  job.to = to;
  job.from = from;
  job.bytes = bytes;
  job.order = order;
  job.finished.store(false, std::memory_order_relaxed);
  job.done = [](CopyJob* base, Status status) {
    auto* j = static_cast<Job*>(base);
    j->status = status;
    if (j->log != nullptr) j->log->push_back(j->index);
    j->finished.store(true, std::memory_order_release);
  };
}
Status wait(Job& job) {
  const std::int64_t limit = now_ns() + 10 * kSecond;
  while (!job.finished.load(std::memory_order_acquire)) {
    if (now_ns() > limit) {
      std::fprintf(stderr, "a copy did not finish in 10 s\n");
      std::abort();  // the job is still the engine's: it may not be destroyed
    }
  }
  return job.status;
}
Status move(CopyEnd to, CopyEnd from, std::uint64_t bytes, std::uint64_t order = 1,
            int executor = -1) {
  Job job;
  fill(job, to, from, bytes, order);
  job.executor = executor;
  const Status s = submit_copy(&job);
  return s == Status::ok ? wait(job) : s;
}

std::vector<std::uint8_t> pattern(std::size_t n, unsigned seed) {
  std::vector<std::uint8_t> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + seed);
  return v;
}
const void* pointer(std::uint64_t a) { return reinterpret_cast<const void*>(a); }
bool have_gpu(int n = 1) { return test::open_gpus() >= n; }

// A file descriptor and bytes over a socketpair.
struct Wire {
  ExportedAllocation::Kind kind;
  std::uint8_t ipc[64];
  std::uint64_t bytes;
  GpuUuid gpu;
};
void send_allocation(int socket, const ExportedAllocation& e) {
  Wire w{e.kind, {}, e.bytes, e.gpu};
  std::memcpy(w.ipc, e.ipc_handle, 64);
  iovec io{&w, sizeof w};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  if (e.fd) {
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = e.fd.get();
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  REQUIRE(sendmsg(socket, &m, 0) == static_cast<ssize_t>(sizeof w));
}
ExportedAllocation receive_allocation(int socket) {
  Wire w{};
  iovec io{&w, sizeof w};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  REQUIRE(recvmsg(socket, &m, 0) == static_cast<ssize_t>(sizeof w));
  ExportedAllocation e;
  e.kind = w.kind;
  e.bytes = w.bytes;
  e.gpu = w.gpu;
  std::memcpy(e.ipc_handle, w.ipc, 64);
  if (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    e.fd = UniqueFd(fd);
  }
  return e;
}

constexpr std::size_t kShared = 4 << 20;
constexpr std::size_t kOffset = 12345 * 8;
constexpr std::size_t kPart = 1 << 20;

}  // namespace

TEST_CASE("pointers are recognised", "[inspect]") {
  NEEDS(have_gpu(), "no GPU");
  int local = 0;
  PinnedMemory pinned(4096);
  CHECK(inspect_pointer(&local).kind == MemoryKind::host);
  CHECK(inspect_pointer(pinned.as()).kind == MemoryKind::host);
  for (Kind kind : {Kind::malloc, Kind::vmm, Kind::vmm_private}) {
    GpuMemory memory(kind, 0, 4 << 20);
    GpuMemory neighbour(kind, 0, 4 << 20);
    const auto look = [&] {
      const PointerInfo info = inspect_pointer(pointer(memory.address() + 1000));
      CHECK(info.kind == MemoryKind::cuda);
      CHECK(info.gpu == 0);
      CHECK(info.alloc_base == memory.address());
      CHECK(info.alloc_bytes == memory.bytes());
      test::LogCapture log;
      CHECK(check_range(info, pointer(memory.address()), memory.bytes()) == Status::ok);
      CHECK(check_range(info, pointer(memory.address() + 1), memory.bytes()) ==
            Status::unsupported);
    };
    look();
    PointerInfo other;
    std::thread([&] { other = inspect_pointer(pointer(memory.address())); }).join();
    CHECK(other.kind == MemoryKind::cuda);  // a thread without a context
    CHECK(other.alloc_base == memory.address());
  }
  const std::int64_t start = now_ns();
  for (int i = 0; i < 1000; ++i) (void)inspect_pointer(&local);
  std::printf("inspect_pointer(host): %.2f us\n", static_cast<double>(now_ns() - start) / 1e6);
}

TEST_CASE("host to GPU, GPU to host and within one GPU move the right bytes", "[copy]") {
  NEEDS(have_gpu(), "no GPU");
  for (Kind kind : {Kind::malloc, Kind::vmm}) {
    GpuMemory a(kind, 0, 8 << 20);
    PinnedMemory host(4 << 20);
    for (std::size_t n : {std::size_t{1}, std::size_t{8}, std::size_t{100}, std::size_t{4096},
                          std::size_t{(3 << 20) + 77}}) {
      const auto bytes = pattern(n, static_cast<unsigned>(n));
      std::memcpy(host.as(), bytes.data(), n);
      CHECK(move({a.address() + 16, 0}, {host.address(), -1}, n) == Status::ok);
      CHECK((from_gpu(a.address() + 16, n) == bytes));
      CHECK(move({a.address() + (4 << 20), 0}, {a.address() + 16, 0}, n) == Status::ok);
      CHECK((from_gpu(a.address() + (4 << 20), n) == bytes));
      std::memset(host.as(), 0, n);
      CHECK(move({host.address(), -1}, {a.address() + (4 << 20), 0}, n) == Status::ok);
      CHECK(std::memcmp(host.as(), bytes.data(), n) == 0);
    }
  }
}

TEST_CASE("tiny jobs at each alignment and size land and touch nothing else", "[copy]") {
  NEEDS(have_gpu(), "no GPU");
  GpuMemory a(Kind::vmm, 0, 1 << 20);
  PinnedMemory host(4096);
  const auto source = pattern(1024, 5);
  std::memcpy(host.as(), source.data(), 1024);
  for (std::size_t at : {0, 4, 8, 1}) {
    for (std::size_t n : {4, 8, 16, 64, 120, 128, 136}) {
      const std::vector<std::uint8_t> blank(512, 0xee);
      to_gpu(a.address(), blank.data(), blank.size());
      CHECK(move({a.address() + 64 + at, 0}, {host.address() + 8, -1}, n) == Status::ok);
      auto expected = blank;
      std::copy_n(source.begin() + 8, n, expected.begin() + static_cast<long>(64 + at));
      CHECK((from_gpu(a.address(), 512) == expected));
    }
  }
}

TEST_CASE("memory of another GPU of this process is reached", "[copy]") {
  NEEDS(have_gpu(2), "fewer than two GPUs");
  for (Kind kind : {Kind::malloc, Kind::vmm}) {
    GpuMemory a(kind, 0, kShared);
    GpuMemory b(kind, 1, kShared);
    auto reach = import_local(inspect_pointer(pointer(b.address())));
    REQUIRE(reach);
    CHECK((*reach)->gpu() == 1);
    CHECK((*reach)->bytes() == b.bytes());
    const auto bytes = pattern(kPart, 3);
    to_gpu(a.address(), bytes.data(), bytes.size());
    CHECK(move({(*reach)->address() + kOffset, 1}, {a.address(), 0}, kPart) == Status::ok);
    CHECK((from_gpu(b.address() + kOffset, kPart) == bytes));
  }
}

TEST_CASE("a thousand jobs of one order finish in order", "[order]") {
  NEEDS(have_gpu(), "no GPU");
  GpuMemory a(Kind::vmm, 0, 16 << 20);
  PinnedMemory host(16 << 20);
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::size_t> log;
  for (std::size_t i = 0; i < 1000; ++i) {
    jobs.push_back(std::make_unique<Job>());
    Job& j = *jobs.back();
    const CopyEnd gpu{a.address() + i * 8192, 0};
    const CopyEnd cpu{host.address() + i * 8192, -1};
    switch (i % 4) {
      case 0:
        fill(j, gpu, cpu, 64);
        break;
      case 1:
        fill(j, gpu, cpu, 8000);
        break;
      case 2:
        fill(j, cpu, gpu, 4096);
        break;
      default:
        fill(j, {a.address() + (8 << 20) + i * 4096, 0}, gpu, 4096);
        break;
    }
    j.index = i;
    j.log = &log;
  }
  for (auto& j : jobs) REQUIRE(submit_copy(j.get()) == Status::ok);
  for (auto& j : jobs) CHECK(wait(*j) == Status::ok);
  REQUIRE(log.size() == 1000);
  CHECK(std::is_sorted(log.begin(), log.end()));
}

TEST_CASE("VMM memory that cannot be shared is refused with the reason", "[share]") {
  NEEDS(have_gpu(), "no GPU");
  test::LogCapture log;
  GpuMemory a(Kind::vmm_private, 0, 2 << 20);
  CHECK(export_allocation(inspect_pointer(pointer(a.address()))).status() == Status::unsupported);
  CHECK(log.has(LogLevel::warn, "GPUDirect"));
}

// Hidden ('.'): the child of the next case.  Writes into the parent's memory, then reads it.
TEST_CASE("peer process", "[.peer]") {
  const char* number = std::getenv("TWINPATH_TEST_PEER_FD");
  NEEDS(number != nullptr, "started by the sharing test only");
  const int socket = std::atoi(number);
  REQUIRE(have_gpu());
  // With two GPUs the child works with the second one's memory, the parent's is on the first.
  const int mine = have_gpu(2) ? 1 : 0;
  ExportedAllocation e = receive_allocation(socket);
  auto mapped = import_allocation(std::move(e));
  REQUIRE(mapped);
  CHECK((*mapped)->gpu() == 0);
  GpuMemory source(Kind::vmm, mine, kShared);
  PinnedMemory host(kPart);
  const auto bytes = pattern(kPart, 9);
  to_gpu(source.address(), bytes.data(), kPart);
  CHECK(move({(*mapped)->address() + kOffset, 0}, {source.address(), mine}, kPart) == Status::ok);
  std::memcpy(host.as(), bytes.data(), 128);
  CHECK(move({(*mapped)->address(), 0}, {host.address(), -1}, 128) == Status::ok);
  // And back, as a READ does: far memory is the source.
  CHECK(move({source.address() + (2 << 20), mine}, {(*mapped)->address() + kOffset, 0}, kPart, 1,
             mine) == Status::ok);
  CHECK((from_gpu(source.address() + (2 << 20), kPart) == bytes));
  const char good = 1;
  CHECK(write(socket, &good, 1) == 1);
}

TEST_CASE("another process writes into our memory", "[share]") {
  NEEDS(have_gpu(), "no GPU");
  for (Kind kind : {Kind::malloc, Kind::vmm}) {
    GpuMemory a(kind, 0, kShared);
    auto exported = export_allocation(inspect_pointer(pointer(a.address())));
    REQUIRE(exported);
    CHECK(exported->kind ==
          (kind == Kind::vmm ? ExportedAllocation::Kind::posix_fd : ExportedAllocation::Kind::ipc));
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    const UniqueFd ours(pair[0]);
    UniqueFd theirs(pair[1]);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      setenv("TWINPATH_TEST_PEER_FD", std::to_string(theirs.get()).c_str(), 1);
      execl("/proc/self/exe", "gpu_engine", "[peer]", nullptr);
      _exit(127);
    }
    theirs.reset();
    send_allocation(ours.get(), *exported);
    char good = 0;
    CHECK(read(ours.get(), &good, 1) == 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    const auto bytes = pattern(kPart, 9);
    CHECK((from_gpu(a.address() + kOffset, kPart) == bytes));
    CHECK(std::equal(bytes.begin(), bytes.begin() + 128, from_gpu(a.address(), 128).begin()));
  }
}

namespace {

// Median time of one job after another.
double latency_us(CopyEnd to, CopyEnd from, std::uint64_t bytes, std::uint64_t order) {
  std::vector<std::int64_t> t;
  for (int i = 0; i < 500; ++i) {
    const std::int64_t start = now_ns();
    if (move(to, from, bytes, order) != Status::ok) return -1;
    t.push_back(now_ns() - start);
  }
  std::nth_element(t.begin(), t.begin() + 250, t.end());
  return static_cast<double>(t[250]) / 1e3;
}

// `depth` jobs in flight over `orders` orders, each sent again when it is done.
double bandwidth_gbs(CopyEnd to, CopyEnd from, std::uint64_t bytes, std::size_t depth,
                     std::size_t orders, int rounds) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < depth; ++i) jobs.push_back(std::make_unique<Job>());
  const std::int64_t start = now_ns();
  for (int r = 0; r < rounds; ++r) {
    for (std::size_t i = 0; i < depth; ++i) {
      Job& j = *jobs[i];
      if (r > 0 && wait(j) != Status::ok) return -1;
      fill(j, {to.address + i * bytes, to.gpu}, {from.address + i * bytes, from.gpu}, bytes,
           i % orders);
      if (submit_copy(&j) != Status::ok) return -1;
    }
  }
  for (auto& j : jobs)
    if (wait(*j) != Status::ok) return -1;
  const auto moved = static_cast<double>(bytes * depth) * rounds;
  return moved / static_cast<double>(now_ns() - start);
}

}  // namespace

TEST_CASE("figures", "[figures]") {
  NEEDS(have_gpu(), "no GPU");
  constexpr std::size_t kBytes = 64 << 20;
  GpuMemory a(Kind::vmm, 0, kBytes);
  PinnedMemory host(kBytes);
  const CopyEnd gpu{a.address(), 0};
  const CopyEnd cpu{host.address(), -1};
  const auto show = [](const char* what, double value, const char* unit) {
    std::printf("%-44s %8.2f %s\n", what, value, unit);
    CHECK(value > 0);
  };
  prepare_copies(0);
  const CopyStatistics before = copy_statistics();
  for (std::uint64_t n : {8, 64, 128})
    show(("tiny host->GPU " + std::to_string(n) + " B").c_str(), latency_us(gpu, cpu, n, 11), "us");
  show("host->GPU 4 KiB", latency_us(gpu, cpu, 4096, 12), "us");
  show("GPU->host 8 B", latency_us(cpu, gpu, 8, 13), "us");
  show("same GPU 8 B (staged)", latency_us({gpu.address + 4096, 0}, gpu, 8, 14), "us");
  show("same GPU 512 KiB x 16 (staged)",
       bandwidth_gbs({gpu.address + kBytes / 2, 0}, gpu, 512 << 10, 16, 4, 10), "GB/s");
  show("host->GPU 512 KiB x 32", bandwidth_gbs(gpu, cpu, 512 << 10, 32, 8, 50), "GB/s");
  show("GPU->host 512 KiB x 32", bandwidth_gbs(cpu, gpu, 512 << 10, 32, 8, 50), "GB/s");
  show("tiny 64 B x 64 in flight, M jobs/s", bandwidth_gbs(gpu, cpu, 64, 64, 16, 500) * 1e3 / 64,
       "M/s");
  if (have_gpu(2)) {
    GpuMemory b(Kind::vmm, 1, kBytes);
    auto reach = import_local(inspect_pointer(pointer(b.address())));
    REQUIRE(reach);
    const CopyEnd far{(*reach)->address(), 1};
    show("GPU->GPU 8 B", latency_us(far, gpu, 8, 15), "us");
    show("GPU->GPU 64 KiB", latency_us(far, gpu, 64 << 10, 16), "us");
    for (std::size_t orders : {1, 8}) {
      const std::string name = " (" + std::to_string(orders) + " orders)";
      show(("GPU->GPU 512 KiB x 32" + name).c_str(),
           bandwidth_gbs(far, gpu, 512 << 10, 32, orders, 200), "GB/s");
      show(("GPU->GPU 512 KiB x 128" + name).c_str(),
           bandwidth_gbs(far, gpu, 512 << 10, 128, orders, 50), "GB/s");
      show(("GPU->GPU 4 KiB x 128" + name).c_str(), bandwidth_gbs(far, gpu, 4096, 128, orders, 200),
           "GB/s");
    }
  }
  const CopyStatistics s = copy_statistics();
  std::printf("jobs %llu, batches %llu, write values %llu, staged %llu\n",
              static_cast<unsigned long long>(s.jobs - before.jobs),
              static_cast<unsigned long long>(s.batches - before.batches),
              static_cast<unsigned long long>(s.write_values - before.write_values),
              static_cast<unsigned long long>(s.staged - before.staged));
  std::printf("notes: %s\n", cuda_notes().empty() ? "none" : cuda_notes().c_str());
}

}  // namespace twinpath::gpu
