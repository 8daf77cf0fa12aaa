// Copies made by another process: both ends here, joined by the socket and the rings that join them
// there, over a made-up GPU.  The program calls its GPU memory by addresses at which nothing lies,
// so a copy that was not translated cannot go unseen.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gda/memory/release_job.h"
#include "plugin/gpu/process/address_map.h"
#include "plugin/gpu/process/elsewhere.h"
#include "plugin/gpu/process/server.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/unit/fake_copy_gpu.h"

namespace twinpath::gpu::process {
namespace {

using test_copies::FakeGpu;
using test_copies::fill;
using test_copies::Job;
using test_copies::Machine;
using test_copies::wait;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kDevice = 48 * kMiB;      // more than the passage holds
constexpr std::uint64_t kNamed = 0x500000000000;  // what the program calls it

// Rings and passage have two addresses here, one for each end; the thread sanitizer knows order by
// address only.
#define NEEDS_ONE_MAPPING \
  NEEDS(!test::kSanitizesThreads, "the thread sanitizer sees no order between two mappings")

// A copy process on a thread of this one.
class Joined {
 public:
  explicit Joined(bool peers = true) {
    machine.gpu().peers = peers;
    machine.gpu().in_use[1] = false;
    machine.gpu().names_elsewhere[kNamed] = machine.device();
    UniqueFd theirs;
    UnsharedFd ours = make_sockets(theirs);
    their_socket = theirs.get();
    serving = std::make_unique<Server>(std::move(theirs), false);
    server = std::thread([this] {
      serving->run(Status::ok, "");
      serving.reset();
    });
    std::string why;
    auto process = CopyProcess::meet(std::move(ours), why);
    REQUIRE(process);
    Elsewhere::choose(std::make_unique<Elsewhere>(std::move(process).take()));
    PointerInfo info;
    info.kind = MemoryKind::cuda;
    info.gpu = 0;
    info.alloc_base = kNamed;
    info.alloc_bytes = kDevice;
    auto made = import_local(info);
    REQUIRE(made);
    own = std::move(made).take();
  }
  ~Joined() {
    machine.gpu().pause(false);
    own.reset();
    stop_copy_threads();
    Elsewhere::choose(std::unique_ptr<Elsewhere>());
    if (server.joinable()) server.join();
  }

  Machine machine{kDevice};
  int their_socket = -1;
  std::unique_ptr<Server> serving;
  std::thread server;
  std::shared_ptr<ImportedAllocation> own;
};

// What a peer sends of memory on GPU 1 that FakeGpu::names_elsewhere has under `name`.
ExportedAllocation on_gpu_1(std::uint64_t name, std::uint64_t bytes) {
  ExportedAllocation e;
  e.kind = ExportedAllocation::Kind::ipc;
  std::memcpy(e.ipc_handle, &name, sizeof name);
  e.bytes = bytes;
  std::memset(e.gpu.bytes, 'B', sizeof e.gpu.bytes);
  return e;
}

CopyEnd gpu_at(std::uint64_t offset) { return {kNamed + offset, 0}; }
CopyEnd host_at(const void* p) { return {reinterpret_cast<std::uintptr_t>(p), -1}; }

Status move(CopyEnd to, CopyEnd from, std::uint64_t bytes, int executor = 0) {
  Job job;
  fill(job, to, from, bytes);
  job.executor = executor;
  const Status s = submit_copy(&job);
  return s == Status::ok ? wait(job) : s;
}

std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint8_t seed) {
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::uint8_t>((i * 131 + i / 251 + seed) & 255);
  return out;
}

TEST_CASE("a copy process moves bytes both ways, of any size and alignment", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  auto* device = reinterpret_cast<std::uint8_t*>(joined.machine.device());
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{4}, std::uint64_t{8}, std::uint64_t{32},
        std::uint64_t{40}, std::uint64_t{1000}, std::uint64_t{kChunk}, kChunk + 1, 20 * kMiB + 5}) {
    for (const std::uint64_t skew : {std::uint64_t{0}, std::uint64_t{5}}) {
      INFO(bytes << " bytes at " << skew);
      const auto data = pattern(bytes + 16, static_cast<std::uint8_t>(bytes + skew));
      REQUIRE(move(gpu_at(64 + skew), host_at(data.data() + skew), bytes) == Status::ok);
      CHECK(std::memcmp(device + 64 + skew, data.data() + skew, bytes) == 0);
      std::vector<std::uint8_t> back(bytes + 16, 0xee);
      REQUIRE(move(host_at(back.data() + skew), gpu_at(64 + skew), bytes, -1) == Status::ok);
      CHECK(std::memcmp(back.data() + skew, data.data() + skew, bytes) == 0);
      CHECK(back[bytes + skew] == 0xee);
      REQUIRE(move(gpu_at(24 * kMiB), gpu_at(64 + skew), bytes) == Status::ok);
      CHECK(std::memcmp(device + 24 * kMiB, data.data() + skew, bytes) == 0);
    }
  }
  CHECK(move(gpu_at(0), gpu_at(64), 0) == Status::ok);
  const std::lock_guard lock(joined.machine.gpu().mutex);
  CHECK(joined.machine.gpu().bare_values == 0);
}

TEST_CASE("small copies from the host go in rows that cut no word", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  for (std::uint64_t bytes = 2; bytes < kRowsBelow; ++bytes) {
    const RowPlan plan = plan_rows(bytes);
    INFO(bytes);
    REQUIRE(plan.head + plan.tail == bytes);
    REQUIRE(plan.head % 2 == 0);
    REQUIRE(plan.tail % 3 == 0);
    if (bytes % 8 == 0 && bytes > 8) {
      REQUIRE(plan.head / 2 % 8 == 0);
      REQUIRE(plan.tail / 3 % 8 == 0);
    }
    if (bytes % 4 == 0 && bytes > 4) {
      REQUIRE(plan.head / 2 % 4 == 0);
      REQUIRE(plan.tail / 3 % 4 == 0);
    }
  }
  // Only where another process's kernels are in the way, only to a GPU, only small ones.
  std::vector<std::uint8_t> data = pattern(64 << 10, 3);
  {
    Joined joined;
    REQUIRE(move(gpu_at(0), host_at(data.data()), 4096) == Status::ok);
    CHECK(joined.machine.gpu().row_copies == 1);
    REQUIRE(move(gpu_at(8192), gpu_at(0), 4096) == Status::ok);  // within a GPU: out, and in again
    CHECK(joined.machine.gpu().row_copies == 2);
    REQUIRE(move(host_at(data.data()), gpu_at(0), 4096) == Status::ok);
    REQUIRE(move(gpu_at(0), host_at(data.data()), 64 << 10) == Status::ok);
    CHECK(joined.machine.gpu().row_copies == 2);
  }
  Machine machine;
  REQUIRE(move({machine.device(), 0}, host_at(data.data()), 4096) == Status::ok);
  CHECK(machine.gpu().row_copies == 0);
}

// Each as it waits for no slice of the GPU's time.
TEST_CASE("up to two words are values that the stream writes, more are rows", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  FakeGpu& fake = joined.machine.gpu();
  std::vector<std::uint64_t> theirs(64);  // of GPU 1
  const auto low = reinterpret_cast<std::uintptr_t>(theirs.data());
  {
    const std::lock_guard lock(fake.mutex);
    fake.names_elsewhere[88] = low;
  }
  auto made = import_allocation(on_gpu_1(88, theirs.size() * 8));
  REQUIRE(made);
  const CopyEnd other{(*made)->address(), (*made)->gpu()};
  std::vector<std::uint64_t> host(64);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = 1000 + i;
  std::vector<Job> jobs(600);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::uint64_t at = 32 * (i / 2 % 16);
    fill(jobs[i], i % 2 == 0 ? CopyEnd{other.address + at, other.gpu} : gpu_at(at),
         host_at(&host[at / 8]), 8 * (1 + at / 32 % 4), 3 + at / 32 % 4);
    jobs[i].executor = 0;
    REQUIRE(submit_copy(&jobs[i]) == Status::ok);
  }
  for (Job& job : jobs) CHECK(wait(job) == Status::ok);
  const std::vector<std::uint64_t>& own = joined.machine.device_words();
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::uint64_t expected = i % 4 <= i / 4 % 4 ? host[i] : 0;
    CHECK(theirs[i] == expected);
    CHECK(own[i] == expected);
  }
  const std::lock_guard lock(fake.mutex);
  const auto values = [&](std::uint64_t from) {
    return std::count_if(fake.written.begin(), fake.written.end(), [&](std::uint64_t at) {
      return at >= from && at < from + theirs.size() * 8;
    });
  };
  // 300 jobs each, a quarter of one word and a quarter of two.
  CHECK(values(low) == 75 + 2 * 75);
  CHECK(values(fake.device_low) == 75 + 2 * 75);
  CHECK(fake.row_copies >= 2 * 150);
  CHECK(fake.bare_values == 0);
}

TEST_CASE("tiny jobs of one batch land in their order", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  FakeGpu& fake = joined.machine.gpu();
  const std::uint64_t* const place = &joined.machine.device_words()[8];
  // What is written last stands, whatever it is written as.
  for (const auto& sizes : std::vector<std::vector<std::uint64_t>>{
           {16, 32}, {8, 32}, {32, 16}, {32, 8, 24}, {24, 16, 32}, {4, 32}, {32, 4}}) {
    INFO(sizes[0] << " bytes, then " << sizes[1]);
    fake.pause(true);
    std::vector<std::vector<std::uint64_t>> sources;
    std::array<std::uint64_t, 4> expected{};
    std::memcpy(expected.data(), place, sizeof expected);
    std::vector<Job> jobs(sizes.size() + 8);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      // The first ones fill what may be under way, so that the others go together.
      const std::uint64_t bytes = i < 8 ? 8 : sizes[i - 8];
      sources.emplace_back(4, 0x1111111111111111u * (i + 1) + bytes);
      if (i >= 8) std::memcpy(expected.data(), sources[i].data(), bytes);
      fill(jobs[i], gpu_at(i < 8 ? 4096 : 64), host_at(sources[i].data()), bytes, 7);
      jobs[i].executor = 0;
      REQUIRE(submit_copy(&jobs[i]) == Status::ok);
      if (i < 8) Machine::settle();
    }
    Machine::settle();
    fake.pause(false);
    for (Job& job : jobs) CHECK(wait(job) == Status::ok);
    CHECK(std::memcmp(place, expected.data(), sizeof expected) == 0);
  }
}

TEST_CASE("without another GPU copies within one go through host memory", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined(false);
  Machine& machine = joined.machine;
  std::vector<std::uint8_t> data = pattern(300000, 9);
  REQUIRE(move(gpu_at(0), host_at(data.data()), data.size()) == Status::ok);
  REQUIRE(move(gpu_at(kMiB), gpu_at(0), data.size()) == Status::ok);
  CHECK(std::memcmp(&machine.device_words()[kMiB / 8], data.data(), data.size()) == 0);
}

TEST_CASE("a copy process ends jobs of one order in the order of their submission",
          "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  constexpr std::size_t kJobs = 3000;  // more than the rings hold
  std::vector<std::uint64_t> host(64 * 1024, 7);
  std::vector<std::size_t> log;
  std::vector<Job> jobs(kJobs);
  for (std::size_t i = 0; i < kJobs; ++i) {
    const std::uint64_t bytes = i % 7 == 0 ? 300000 : 8 + 8 * (i % 9);
    const bool out = i % 3 == 0;
    fill(jobs[i], out ? host_at(host.data()) : gpu_at(8 * i),
         i % 3 == 1 ? gpu_at(kMiB) : (out ? gpu_at(8 * i) : host_at(host.data())), bytes, 5);
    jobs[i].executor = 0;
    jobs[i].index = i;
    jobs[i].log = &log;  // all by one thread, the forwarder
  }
  joined.machine.gpu().pause(true);
  for (std::size_t i = 0; i < kJobs; ++i) {
    REQUIRE(submit_copy(&jobs[i]) == Status::ok);
    if (i == kJobs / 2) joined.machine.gpu().pause(false);
  }
  for (Job& job : jobs) CHECK(wait(job) == Status::ok);
  REQUIRE(log.size() == kJobs);
  for (std::size_t i = 0; i < kJobs; ++i) REQUIRE(log[i] == i);
}

TEST_CASE("a copy process changes words as an adapter's atomics do", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  struct Update : WordUpdate {
    std::atomic<bool> finished{false};
    Status status = Status::again;
  };
  const auto update = [](std::uint64_t offset, bool compare, std::uint64_t a, std::uint64_t b,
                         std::uint64_t not_compared = 0, std::uint64_t stays = 0) {
    Update u;
    u.update = true;
    u.to = gpu_at(offset);
    u.executor = 0;
    u.compare = compare;
    u.operand[0] = a;
    u.operand[1] = b;
    u.operand[2] = not_compared;
    u.operand[3] = stays;
    u.done = [](CopyJob* job, Status s) {
      auto* mine = static_cast<Update*>(job);
      mine->status = s;
      mine->finished.store(true);
      mine->finished.notify_all();
    };
    REQUIRE(submit_copy(&u) == Status::ok);
    u.finished.wait(false);
    CHECK(u.status == Status::ok);
    return u.old;
  };
  auto& word = joined.machine.device_words()[2];
  word = 40;
  CHECK(update(16, false, 2, 0) == 40);
  CHECK(update(16, true, 42, 7) == 42);
  CHECK(update(16, true, 42, 9) == 7);
  CHECK(std::atomic_ref(word).load() == 7);
  // Masked ones: whatever is there, the lowest byte alone; and fields of a byte.
  CHECK(update(16, true, 0, 0x11f0, ~std::uint64_t{0}, ~std::uint64_t{0xff}) == 7);
  CHECK(update(16, false, 0x0110, 0x8080) == 0xf0);
  CHECK(std::atomic_ref(word).load() == 0x100);
}

TEST_CASE("memory that is not registered is refused, and keeps its place", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  const test::LogCapture log;
  std::uint64_t word = 3;
  CHECK(move(gpu_at(kDevice - 4), host_at(&word), 8) == Status::bad_argument);
  CHECK(move(host_at(&word), {kNamed - 8, 0}, 8) == Status::bad_argument);
  CHECK(move(host_at(&word), host_at(&word), 8) == Status::bad_argument);
  CHECK(log.has("outside of all memory that is registered"));
  joined.own.reset();
  CHECK(move(gpu_at(0), host_at(&word), 8) == Status::bad_argument);
  CHECK(word == 3);
}

TEST_CASE("a copy process that ends, ends its jobs with errors", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  const test::LogCapture log;
  std::vector<std::uint64_t> host(kMiB / 8);
  CHECK(move(gpu_at(0), host_at(host.data()), 4096) == Status::ok);
  std::vector<std::size_t> ended;
  std::vector<Job> jobs(2000);
  joined.machine.gpu().pause(true);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    fill(jobs[i], gpu_at(0), host_at(host.data()), i % 5 == 0 ? kMiB : 64, 9);
    jobs[i].executor = 0;
    jobs[i].index = i;
    jobs[i].log = &ended;
    REQUIRE(submit_copy(&jobs[i]) == Status::ok);
  }
  std::thread later([&] {
    Machine::settle();
    joined.machine.gpu().dead = true;  // its streams end with it
    joined.machine.gpu().pause(false);
    (void)::shutdown(joined.their_socket, SHUT_RDWR);
  });
  // What was under way in its streams may have arrived.
  for (Job& job : jobs) (void)wait(job);
  CHECK(jobs.back().status == Status::closed);
  later.join();
  for (std::size_t i = 0; i < ended.size(); ++i) REQUIRE(ended[i] == i);
  CHECK(move(gpu_at(0), host_at(host.data()), 8) == Status::closed);
  std::string why;
  CHECK(copies_ready(why) == Status::closed);
  CHECK(why.find("it has ended") != std::string::npos);
  CHECK(log.has("transfers of GPU memory end in errors"));
  PointerInfo more{MemoryKind::cuda, 0, kNamed + kDevice, 4096};
  CHECK_FALSE(import_local(more));

  // What lets kernels go gets there all the same, again and again.  What the other one's streams
  // hold would still be copied now.
  joined.server.join();
  joined.machine.gpu().dead = false;
  struct Release : gda::ReleaseJob {
    std::atomic<Status> ended{Status::again};
  };
  for (std::uint64_t& word : std::span(host).first(3)) {
    word = 7 + static_cast<std::uint64_t>(&word - host.data());
    Release release;
    release.to = {joined.machine.device(), 0};
    release.from = host_at(&word);
    release.bytes = sizeof word;
    release.executor = 0;
    release.over = [](gda::ReleaseJob* job, Status status) {
      auto& mine = static_cast<Release*>(job)->ended;
      mine.store(status, std::memory_order_release);
      mine.notify_all();
    };
    gda::submit_release(release);
    release.ended.wait(Status::again, std::memory_order_acquire);
    CHECK(release.ended == Status::ok);
    CHECK(release.here);
    CHECK(joined.machine.device_words()[0] == word);
  }
}

TEST_CASE("a copy process that does not answer counts as ended", "[gpu_process]") {
  const Machine machine;
  const test::LogCapture log;
  UniqueFd theirs;
  UnsharedFd ours = make_sockets(theirs);
  Answer ready;
  ready.layout = kLayout;
  ready.what = Tell::ready;
  REQUIRE(send_message(theirs.get(), &ready, sizeof ready, -1));
  std::string why;
  auto process = CopyProcess::meet(std::move(ours), why, 1'000'000'000);
  REQUIRE(process);
  CHECK_FALSE((*process)->ended());
  CHECK((*process)->import(1, ExportedAllocation{}).status() == Status::closed);
  CHECK((*process)->seen_ended());
  CHECK(log.has("does not answer"));
}

TEST_CASE("memory that the driver does not share is refused at registration", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  const test::LogCapture log;
  PointerInfo unknown{MemoryKind::cuda, 0, kNamed + kDevice, 4096};
  CHECK_FALSE(import_local(unknown));
  CHECK(log.has("cuIpcOpenMemHandle failed"));
  // One that has it already shares it.
  PointerInfo known{MemoryKind::cuda, 0, kNamed, kDevice};
  auto again = import_local(known);
  REQUIRE(again);
  CHECK((*again).get() == joined.own.get());
  // What it logs is the program's to show.
  joined.serving->log(static_cast<int>(LogLevel::warn), "something is wrong there");
  std::string why;
  CHECK(copies_ready(why) == Status::ok);
  CHECK(log.has(LogLevel::warn, "copy process: something is wrong there"));
}

TEST_CASE("memory of others gets addresses of its own", "[gpu_process]") {
  NEEDS_ONE_MAPPING;
  Joined joined;
  joined.machine.gpu().names_elsewhere[77] = joined.machine.device() + 8 * kMiB;
  auto made = import_allocation(on_gpu_1(77, kMiB));
  REQUIRE(made);
  CHECK((*made)->gpu() == 1);
  const std::uint64_t at = (*made)->address();
  CHECK((at < kNamed || at >= kNamed + kDevice));
  joined.machine.device_words()[kMiB + 1] = 99;
  std::uint64_t word = 0;
  CHECK(move(host_at(&word), {at + 8, (*made)->gpu()}, 8) == Status::ok);
  CHECK(word == 99);
  CHECK(move(host_at(&word), {at + kMiB, (*made)->gpu()}, 8) == Status::bad_argument);
}

TEST_CASE("addresses are found by range, and the newest memory at an address counts",
          "[gpu_process]") {
  AddressMap map;
  AddressView view(map);
  CHECK(view.find(100, 1) == nullptr);
  map.add({100, 50, 1000, 1, 0});
  map.add({200, 50, 2000, 2, 1});
  CHECK(view.find(99, 1) == nullptr);
  REQUIRE(view.find(149, 1) != nullptr);
  CHECK(view.find(149, 2) == nullptr);
  CHECK(view.find(149, ~std::uint64_t{0}) == nullptr);
  CHECK(view.find(150, 0) != nullptr);
  REQUIRE(view.find(249, 1) != nullptr);
  CHECK(view.find(249, 1)->id == 2);
  map.add({120, 100, 3000, 3, 0});  // both were freed meanwhile
  CHECK(view.find(100, 1) == nullptr);
  REQUIRE(view.find(210, 1) != nullptr);
  CHECK(view.find(210, 1)->there == 3000);
  map.remove(1);
  map.remove(3);
  CHECK(view.find(210, 1) == nullptr);
}

// What the plugin meets when it starts the executable.
TEST_CASE("a copy process that cannot be had is named with its reason", "[gpu_process]") {
  const Machine machine;
  const auto reason = [](const std::string& executable) {
    copy_elsewhere(executable);
    std::string why;
    CHECK(copies_ready(why) != Status::ok);
    std::uint64_t word = 0;
    CHECK(move(gpu_at(0), host_at(&word), 8) == Status::unsupported);
    copy_elsewhere("");
    return why;
  };
  const auto named = [&](const std::string& executable, const char* expected) {
    const std::string why = reason(executable);
    CAPTURE(executable, why);
    CHECK(why.find(expected) != std::string::npos);
  };
  named("/nowhere/copier", "/nowhere/copier cannot be started: No such file");
  named("/etc/passwd", "cannot be started: Permission denied");
  named("/bin/true", "it ended before it was ready");
  const char* copier = std::getenv("TWINPATH_TEST_COPIER");
  NEEDS(copier != nullptr, "TWINPATH_TEST_COPIER does not name the executable");
  // It is told where the driver is: here, a program without one.  Where a real driver is installed
  // the process can load it, and then has no GPU to share with this program.
  const std::string why = reason(copier);
  INFO(why);
  CHECK((why.find("cannot load the CUDA driver") != std::string::npos ||
         why.find("cuInit failed") != std::string::npos ||
         why.find("cannot use GPU 0") != std::string::npos));
}

}  // namespace
}  // namespace twinpath::gpu::process
