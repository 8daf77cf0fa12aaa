// Host RMA at its edges: large offsets, transfers larger than the adapter's messages, strides,
// devices of several ports, windows that go.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kWords = 64 * 8;

// Above 1 GiB and at a window's last byte, where 32 bits would not do.
std::string far_offsets(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  constexpr std::size_t kBytes = (std::size_t{5} << 30) + 4096;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT_GIN(memory != MAP_FAILED);
  auto* const bytes = static_cast<std::uint8_t*>(memory);
  auto window = member.comm->register_window(memory, kBytes, MemoryType::host, 0, -1, {});
  EXPECT_GIN(window);
  RmaMemory signals(*member.comm, kWords);
  EXPECT_GIN(signals);
  const int peer = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  std::uint64_t count = 0;
  for (const std::uint64_t at :
       {std::uint64_t{1} << 30, (std::uint64_t{1} << 32) - 100, std::uint64_t{kBytes} - 1000}) {
    for (std::size_t i = 0; i < 1000; ++i) bytes[i] = rma_byte(r.rank, peer, 1, i);
    const RmaSignal signal{signals.at(0), 1};
    auto put = member.context->put(0, peer, {{*window, 0}, {*window, at}, 1000}, &signal);
    EXPECT_GIN(put);
    EXPECT_GIN(rma_await(*member.context, signals, 0, ++count));
    for (std::size_t i = 0; i < 1000; ++i)
      EXPECT_GIN(bytes[at + i] == rma_byte(before, r.rank, 1, i), static_cast<std::int64_t>(i));
    EXPECT_RMA_OK(rma_wait(*put));
    r.meeting->barrier();
  }
  EXPECT_RMA_OK(member.comm->deregister_window(*window));
  ::munmap(memory, kBytes);
  return {};
}

// An address range of `blocks` that are all the same 2 MiB, and a tail of its own.
class Repeated {
 public:
  static constexpr std::size_t kBlock = 2 << 20;
  explicit Repeated(std::size_t blocks) : bytes_((blocks + 1) * kBlock) {
    const int fd = ::memfd_create("repeated", MFD_CLOEXEC);
    if (::ftruncate(fd, 2 * kBlock) != 0) return;
    void* const at = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    data_ = static_cast<std::uint8_t*>(at);
    for (std::size_t b = 0; b <= blocks; ++b)
      good_ &= ::mmap(data_ + b * kBlock, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      fd, b < blocks ? 0 : kBlock) != MAP_FAILED;
    ::close(fd);
  }
  ~Repeated() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  explicit operator bool() const { return data_ != nullptr && good_; }
  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::size_t bytes_;
  std::uint8_t* data_ = nullptr;
  bool good_ = true;
};

// One put that is larger than what the adapter takes at once (1 GiB), with a signal behind it.
std::string large(Rank& r) {
  Repeated from(512), to(512);  // outlive what uses them, where a rank stops half way
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context && from && to);
  RmaContext& context = *member.context;
  EXPECT_GIN(r.devices->rails(0).front().port->max_message_bytes < from.bytes());
  auto source =
      member.comm->register_window(from.data(), from.bytes(), MemoryType::host, 0, -1, {});
  auto target = member.comm->register_window(to.data(), to.bytes(), MemoryType::host, 0, -1, {});
  RmaMemory signals(*member.comm, kWords);
  EXPECT_GIN(source && target && signals);
  const int peer = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  const std::size_t tail = from.bytes() - Repeated::kBlock;
  for (std::size_t i = 0; i < Repeated::kBlock; ++i) {
    from.data()[i] = rma_byte(r.rank, peer, 1, i);
    from.data()[tail + i] = rma_byte(r.rank, peer, 2, i);
  }
  r.meeting->barrier();
  if (r.rank == 0 || r.ranks == 1) {
    const RmaSignal signal{signals.at(8), 1};
    auto put = context.put(0, peer, {{*source, 0}, {*target, 0}, from.bytes() - 100}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  if (r.rank != 0 || r.ranks == 1) {
    EXPECT_GIN(rma_await(context, signals, 8, 1));
    for (std::size_t i = 0; i < Repeated::kBlock; ++i) {
      EXPECT_GIN(to.data()[i] == rma_byte(before, r.rank, 1, i), static_cast<std::int64_t>(i));
      const bool put = i < Repeated::kBlock - 100;
      EXPECT_GIN(to.data()[tail + i] == (put ? rma_byte(before, r.rank, 2, i) : 0),
                 static_cast<std::int64_t>(i));
    }
  }
  r.meeting->barrier();
  EXPECT_RMA_OK(member.comm->deregister_window(*source));
  EXPECT_RMA_OK(member.comm->deregister_window(*target));
  return {};
}

// Only ranks at a stride are spoken to.
std::string strided(Rank& r) {
  RmaMember member = rma_join(r, {.contexts = 2, .rank_stride = 2});
  EXPECT_GIN(member.context);
  RmaMemory signals(*member.comm, kWords);
  EXPECT_GIN(signals);
  for (int c = 0; c < 2; ++c)
    for (int p = 0; p < r.ranks; ++p) {
      const RmaSignal signal{signals.at(8 * static_cast<std::uint64_t>(r.rank)), 5};
      auto put = member.context->put(c, p, {}, &signal);
      EXPECT_GIN(static_cast<bool>(put) == (p % 2 == r.rank % 2), c, p);
      if (put) EXPECT_RMA_OK(rma_wait(*put));
    }
  for (std::size_t p = 0; p < static_cast<std::size_t>(r.ranks); ++p)
    if (static_cast<int>(p) % 2 == r.rank % 2)
      EXPECT_GIN(rma_await(*member.context, signals, 8 * p, 10));
  r.meeting->barrier();
  for (std::size_t p = 0; p < static_cast<std::size_t>(r.ranks); ++p)
    if (static_cast<int>(p) % 2 != r.rank % 2) EXPECT_GIN(signals.word(8 * p) == 0);
  r.meeting->barrier();
  return {};
}

// A device of several ports.
std::string merged(Rank& r) {
  static std::mutex one_at_a_time;
  int device = -1;
  {
    const std::lock_guard hold(one_at_a_time);
    const int members[2] = {0, 1};
    auto made = r.devices->merge(members);
    EXPECT_GIN(made);
    device = *made;
  }
  EXPECT_GIN(r.devices->rails(device).size() == 2);
  r.meeting->barrier();
  RmaMember member = rma_join(r, {}, device);
  EXPECT_GIN(member.context);
  RmaMemory memory(*member.comm, 100000);
  EXPECT_GIN(memory);
  const int peer = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
  for (std::size_t i = 0; i < 40000; ++i) memory.data()[i] = rma_byte(r.rank, peer, 1, i);
  const RmaSignal signal{memory.at(90000), 3};
  auto put = member.context->put(0, peer, {memory.at(0), memory.at(40000), 40000}, &signal);
  EXPECT_GIN(put);
  EXPECT_GIN(rma_await(*member.context, memory, 90000, 3));
  for (std::size_t i = 0; i < 40000; ++i)
    EXPECT_GIN(memory.data()[40000 + i] == rma_byte(before, r.rank, 1, i));
  EXPECT_RMA_OK(rma_wait(*put));
  r.meeting->barrier();
  return {};
}

// More than an adapter's queue takes at once, from a window that goes behind the last call: it goes
// when all of that has been read.
std::string window_that_goes(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  constexpr std::size_t kEach = 64, kAll = 400 * kEach;
  RmaMemory from(*member.comm, kAll), to(*member.comm, kAll + 8);
  EXPECT_GIN(from && to);
  const int peer = 1 - r.rank;
  std::memset(from.data(), r.rank + 1, kAll);
  r.meeting->barrier();
  std::vector<RmaRequest*> requests;
  const RmaSignal signal{to.at(kAll), 1};
  for (std::size_t at = 0; at < kAll; at += kEach) {
    auto put = member.context->put(0, peer, {from.at(at), to.at(at), kEach},
                                   at + kEach == kAll ? &signal : nullptr);
    EXPECT_GIN(put);
    requests.push_back(*put);
  }
  from.release();
  std::memset(from.data(), 0xee, kAll);
  for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request));
  EXPECT_GIN(rma_await(*member.context, to, kAll, 1));
  EXPECT_GIN(
      std::all_of(to.data(), to.data() + kAll, [peer](std::uint8_t b) { return b == peer + 1; }));
  r.meeting->barrier();
  return {};
}

// Rank 1 gives its window back.  A signal comes for it that rank 1's CPU would add.
std::string signal_for_no_window(Rank& r) {
  RmaMember member = rma_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 4096);
  EXPECT_GIN(memory);
  if (r.rank == 1) memory.release();
  r.meeting->barrier();
  if (r.rank == 0) {
    const RmaSignal signal{memory.at(8), 1};
    EXPECT_GIN(context.put(0, 1, {}, &signal));
  } else {
    const std::int64_t end = now_ns() + kLimit;
    while (!context.failed() && memory.word(8) == 0 && now_ns() < end) (void)context.progress();
    EXPECT_GIN(memory.word(8) == 0 && context.failed());
  }
  r.meeting->barrier();
  return {};
}

}  // namespace

// Windows of 5 GiB: an adapter that pins them needs the memory.
TEST_CASE("RMA offsets have 64 bits", "[large]") { CHECK(run_threads(2, far_offsets) == ""); }

// 2 GiB, for which soft-RoCE takes a minute.
TEST_CASE("An RMA put larger than a message of the adapter goes in pieces", "[large]") {
  CHECK(run_threads(2, large) == "");
}

TEST_CASE("RMA contexts with a stride speak to their ranks only") {
  CHECK(run_threads(4, strided) == "");
}

TEST_CASE("RMA works over a merged device") {
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1";
  CHECK(run_threads(2, merged, config) == "");
}

TEST_CASE("A window goes when what was asked of it before has ended") {
  CHECK(run_threads(2, window_that_goes) == "");
}

TEST_CASE("A signal for a window that was given back is added nowhere, and fails its queue") {
  Config config = gin_config();
  config.gin_atomics = AtomicsChoice::never;
  LogCapture log;
  CHECK(run_threads(2, signal_for_no_window, config) == "");
  CHECK(log.has(LogLevel::warn, "the window is not registered (any more)"));
}
