// See gin_ranks.h.
#include "test/gda/gin_ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/option_values.h"
#include "plugin/base/options.h"
#include "plugin/base/page_size.h"
#include "plugin/fabric/fabric.h"
#include "plugin/fabric/soft/extended.h"
#include "test/support/catch.h"
#include "test/support/like.h"
#include "test/support/pattern.h"

namespace twinpath::test {
namespace {

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

class ThreadMeeting final : public Meeting {
 public:
  struct Place {
    explicit Place(int ranks) : barrier(ranks), handles(static_cast<std::size_t>(ranks)) {}
    std::barrier<> barrier;
    std::vector<HandleBytesArray> handles;
  };
  ThreadMeeting(Place& place, int rank) : place_(place), rank_(static_cast<std::size_t>(rank)) {}
  std::vector<HandleBytesArray> exchange(const HandleBytesArray& mine) override {
    place_.handles[rank_] = mine;
    place_.barrier.arrive_and_wait();
    auto all = place_.handles;
    place_.barrier.arrive_and_wait();
    return all;
  }
  void barrier() override { place_.barrier.arrive_and_wait(); }

 private:
  Place& place_;
  const std::size_t rank_;
};

bool read_all(int fd, void* p, std::size_t n) {
  for (auto* at = static_cast<char*>(p); n != 0;) {
    const ssize_t got = ::read(fd, at, n);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<std::size_t>(got);
  }
  return true;
}
bool send_all(int fd, const void* p, std::size_t n) {
  return ::send(fd, p, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n);
}

// Towards the test's process, which hands the handles round.
class ProcessMeeting final : public Meeting {
 public:
  ProcessMeeting(int fd, int ranks) : fd_(fd), ranks_(static_cast<std::size_t>(ranks)) {}
  std::vector<HandleBytesArray> exchange(const HandleBytesArray& mine) override {
    std::vector<HandleBytesArray> all(ranks_);
    if (!send_all(fd_, mine.data(), mine.size()) ||
        !read_all(fd_, all.data(), ranks_ * sizeof mine))
      ::_exit(3);  // the test has gone
    return all;
  }
  void barrier() override { (void)exchange({}); }

 private:
  const int fd_;
  const std::size_t ranks_;
};

std::string run_rank(int rank, int ranks, Meeting& meeting, std::shared_ptr<Devices> devices,
                     Scenario scenario) {
  Rank r;
  r.rank = rank;
  r.ranks = ranks;
  r.meeting = &meeting;
  if (!r.use(std::move(devices))) return "no transport";
  return scenario(r);
}

}  // namespace

NamedScenario::NamedScenario(const char* name, Scenario scenario) { scenarios()[name] = scenario; }

Config gin_config() {
  if (on_adapters()) return config_from_environment();
  Config c;
  c.fabric = FabricChoice::soft;
  c.soft_hcas = test::as_like("soft0");
  c.soft_cuda = SoftCuda::off;
  c.connect_timeout_ms = 20000;
  c.ib_timeout = 14;  // 67 ms: what is lost for good is known soon
  c.peer_timeout_ms = 4000;
  c.socket_ifname = std::string("lo");  // g++ 12 warns of the assignment of characters
  std::string allowed;
  if (const char* mode = std::getenv("TWINPATH_MODE")) (void)parse_value(mode, c.mode, allowed);
  if (const char* who = std::getenv("NCCL_GIN_GDAKI_NIC_HANDLER"))
    (void)parse_value(who, c.gin_nic_handler, allowed);
  if (const char* atomics = std::getenv("TWINPATH_GIN_ATOMICS"))
    (void)parse_value(atomics, c.gin_atomics, allowed);
  return c;
}

bool on_adapters() {
  const char* fabric = std::getenv("TWINPATH_FABRIC");
  return fabric != nullptr && std::strcmp(fabric, "verbs") == 0;
}

bool on_adapter_queues() { return gin_config().mode == ModeChoice::gda; }

std::shared_ptr<Devices> open_devices(const Config& config, void (*adjust)(Fabric&)) {
  // The thread sanitizer sees libudev, which hwloc uses, write a static word.
  static std::mutex one_at_a_time;
  const std::lock_guard hold(one_at_a_time);
  auto fabric = open_fabric(config);
  if (!fabric) return nullptr;
  if (adjust != nullptr) adjust(**fabric);
  return std::make_shared<Devices>(std::move(fabric).take(), config, std::nullopt,
                                   CounterPage::create("here", "test", {}));
}

bool set_modes(Rank& r, ModeChoice mode, const char* peers, QueuePlace cqs, bool atomics) {
  Config c = gin_config();
  c.mode = mode;
  c.peer_mode = peers;
  c.gin_cq = cqs;
  c.gin_atomics = atomics ? AtomicsChoice::always : AtomicsChoice::never;
  return r.use(open_devices(c));
}

bool Rank::use(std::shared_ptr<Devices> from) {
  devices = std::move(from);
  auto made = gda::make_gin_transport(devices);
  if (!made) return false;
  transport = std::move(made).take();
  return true;
}

std::unique_ptr<gda::GinComm> Rank::connect(int device, const CommSettings& settings) const {
  HandleBytesArray mine{};
  if (device < 0) device = rank % static_cast<int>(transport->device_count());
  auto listener = transport->listen(device, mine);
  const auto handles = meeting->exchange(mine);
  if (!listener) return nullptr;
  auto comm = transport->connect(handles, rank, **listener, settings);
  return comm ? std::move(comm).take() : nullptr;
}

Member join(const Rank& r, const gda::ContextSettings& settings, int device,
            const CommSettings& comm) {
  Member member{r.connect(device, comm), nullptr, r.rank};
  if (member.comm == nullptr) return member;
  auto context = member.comm->create_context(settings);
  if (context) member.context = std::move(context).take();
  return member;
}

WindowMemory::WindowMemory(gda::GinComm& comm, std::size_t bytes)
    : comm_(comm),
      bytes_(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), page_end(bytes)))) {
  std::memset(data(), 0, bytes);
  auto window = comm.register_window(data(), bytes, MemoryType::host, 0, -1, {});
  if (window) window_ = *window;
}

void WindowMemory::release() {
  if (window_ != nullptr) (void)comm_.deregister_window(window_);
  window_ = nullptr;
}

void WindowMemory::fill(unsigned seed, std::size_t at, std::size_t bytes) {
  KnownBytes(seed * 31 + 1).fill(data() + at, bytes);
}

std::int64_t WindowMemory::mismatch(unsigned seed, std::size_t at, std::size_t bytes) const {
  const std::size_t i = KnownBytes(seed * 31 + 1).differs_at(data() + at, bytes);
  return i == bytes ? -1 : static_cast<std::int64_t>(i);
}

void mend_ports(const Devices& devices) {
  if (on_adapters()) return;
  for (int device = 0; device < static_cast<int>(devices.count()); ++device)
    for (const RailPort& rail : devices.rails(device)) {
      (void)soft::set_port_state(rail.port->context, rail.port->number, true);
      (void)soft::set_port_loss(rail.port->context, rail.port->number, soft::PortLoss::none);
    }
}

std::string run_threads(int ranks, Scenario scenario, const Config& config,
                        void (*adjust)(Fabric&)) {
  auto devices = open_devices(config, adjust);
  if (devices == nullptr || devices->count() == 0) return "no device";
  ThreadMeeting::Place place(ranks);
  std::mutex mutex;
  std::string errors;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ThreadMeeting meeting(place, r);
      const std::string error = run_rank(r, ranks, meeting, devices, scenario);
      if (error.empty()) return;
      const std::lock_guard hold(mutex);
      errors += "rank " + std::to_string(r) + ": " + error + "\n";
      // Ranks that met errors have left; the others must not wait for them.
      place.barrier.arrive_and_drop();
    });
  }
  for (auto& t : threads) t.join();
  mend_ports(*devices);
  return errors;
}

RankProcesses::RankProcesses(int ranks, const std::string& name) {
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      // Not closed by exec; the others' are.
      const int fd = ::dup(ends[1]);
      const std::string mine =
          name + " " + std::to_string(r) + " " + std::to_string(ranks) + " " + std::to_string(fd);
      ::setenv("TWINPATH_TEST_RANK", mine.c_str(), 1);
      ::execl("/proc/self/exe", "gin_rank", "a rank of another test's team",
              static_cast<char*>(nullptr));
      ::_exit(99);
    }
    ::close(ends[1]);
    ranks_.push_back({pid, ends[0]});
  }
}

RankProcesses::~RankProcesses() {
  for (Process& p : ranks_) {
    if (p.pid > 0) {
      ::kill(p.pid, SIGKILL);
      ::waitpid(p.pid, nullptr, 0);
    }
    if (p.fd >= 0) ::close(p.fd);
  }
}

bool RankProcesses::serve() {
  std::vector<HandleBytesArray> all(ranks_.size());
  bool any = false;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].fd < 0) continue;
    if (!read_all(ranks_[r].fd, all[r].data(), all[r].size())) {
      ::close(ranks_[r].fd);
      ranks_[r].fd = -1;
      continue;
    }
    any = true;
  }
  if (!any) return false;
  for (Process& p : ranks_)
    if (p.fd >= 0) (void)send_all(p.fd, all.data(), all.size() * kHandleBytes);
  return true;
}

bool RankProcesses::serve_one(int rank) {
  const int fd = ranks_[static_cast<std::size_t>(rank)].fd;
  std::vector<HandleBytesArray> all(ranks_.size());
  return read_all(fd, all[0].data(), all[0].size()) &&
         send_all(fd, all.data(), all.size() * kHandleBytes);
}

void RankProcesses::kill(int rank) {
  Process& p = ranks_[static_cast<std::size_t>(rank)];
  ::kill(p.pid, SIGKILL);
  ::waitpid(p.pid, nullptr, 0);
  ::close(p.fd);
  p = {};
}

std::string RankProcesses::finish() {
  while (serve()) {
  }
  std::string errors;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].pid < 0) continue;
    int status = 0;
    ::waitpid(ranks_[r].pid, &status, 0);
    ranks_[r].pid = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      errors += "rank " + std::to_string(r) + " ended with status " + std::to_string(status) + "\n";
  }
  return errors;
}

std::string run_processes(int ranks, const std::string& name) {
  RankProcesses processes(ranks, name);
  return processes.finish();
}

std::string text(const char* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  return std::string(what) + " (" + std::to_string(a) + ", " + std::to_string(b) + ", " +
         std::to_string(c) + ")";
}

}  // namespace twinpath::test

// What run_processes starts: hidden, and only with its role in the environment.
TEST_CASE("a rank of another test's team", "[.rank]") {
  using namespace twinpath::test;
  const char* role = std::getenv("TWINPATH_TEST_RANK");
  REQUIRE(role != nullptr);
  char name[64] = "";
  int rank = 0, ranks = 0, fd = -1;
  REQUIRE(std::sscanf(role, "%63s %d %d %d", name, &rank, &ranks, &fd) == 4);
  std::string error = "no device";
  auto devices = open_devices(gin_config());
  if (devices != nullptr && devices->count() != 0) {
    ProcessMeeting meeting(fd, ranks);
    error = run_rank(rank, ranks, meeting, std::move(devices), scenarios().at(name));
  }
  INFO(error);
  CHECK(error.empty());
}
