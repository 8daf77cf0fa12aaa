#pragma once
// Ranks of a GIN team for tests: as threads of this process or as processes of their own (this
// program again, with a role).  CPU threads play the GPU.
//
// A scenario is a function that every rank runs; it returns an empty text or what was wrong.
// Assertions of the test framework stay on the test's thread.
#include <sched.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gda/abi/gin_kernel.h"
#include "gda/gin_transport.h"
#include "plugin/base/clock.h"
#include "plugin/base/config.h"
#include "plugin/rdma/devices.h"

namespace twinpath::test {

using HandleBytesArray = std::array<std::uint8_t, kHandleBytes>;

// The thread sanitizer does not see that a barrier of other processes orders anything.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TWINPATH_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TWINPATH_THREAD_SANITIZER 1
#endif
#if defined(TWINPATH_THREAD_SANITIZER)
inline constexpr bool kSeesBarriers = false;
#else
inline constexpr bool kSeesBarriers = true;
#endif

// How ranks find each other outside of what is tested.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual std::vector<HandleBytesArray> exchange(const HandleBytesArray& mine) = 0;
  virtual void barrier() = 0;
};

// The fabric: the soft HCA, or with TWINPATH_FABRIC=verbs the adapters that the environment names,
// ranks in turn on each.
Config gin_config();
bool on_adapters();
// Whether the adapter itself serves the queues (TWINPATH_MODE=gda).
bool on_adapter_queues();
// A tenth of the work on adapters: soft-RoCE in an emulated machine is slow.
template <class T>
T scaled(T n) {
  return on_adapters() ? n / 10 : n;
}
std::shared_ptr<Devices> open_devices(const Config& config, void (*adjust)(Fabric&) = nullptr);

struct Rank {
  int rank = 0, ranks = 1;
  Meeting* meeting = nullptr;
  std::shared_ptr<Devices> devices;
  std::unique_ptr<gda::GinTransport> transport;

  // Over these devices from now on; false: they make no transport.
  bool use(std::shared_ptr<Devices> from);
  // Collective; null when it failed.  Without a device: ranks take them in turn.
  std::unique_ptr<gda::GinComm> connect(int device = -1, const CommSettings& settings = {}) const;
};

// Opens devices and the transport again, with these settings for this rank.
bool set_modes(Rank& r, ModeChoice mode, const char* peers, QueuePlace cqs = QueuePlace::host,
               bool atomics = true);

// Memory of `bytes` zeros registered as a window.  It begins where a page of the host does, as that
// of NCCL's windows.
class WindowMemory {
 public:
  // Collective.
  WindowMemory(gda::GinComm& comm, std::size_t bytes);
  ~WindowMemory() { release(); }
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;
  void release();
  explicit operator bool() const { return window_ != nullptr; }
  std::uint64_t handle() const { return window_->device_handle(); }
  std::uint8_t* data() const { return bytes_.get(); }
  std::uint64_t word(std::size_t offset) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(data() + offset))
        .load(std::memory_order_acquire);
  }
  void fill(unsigned seed, std::size_t at, std::size_t bytes);
  // Index of the first byte that is not the pattern's, or -1.
  std::int64_t mismatch(unsigned seed, std::size_t at, std::size_t bytes) const;

 private:
  gda::GinComm& comm_;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<std::uint8_t, Free> bytes_;
  gda::GinWindow* window_ = nullptr;
};

using Scenario = std::string (*)(Rank&);

// All ports that devices began with are up and lose nothing, if they are the soft HCA's.
void mend_ports(const Devices& devices);

// Errors of all ranks, one a line.  `adjust`: the fabric, before anything of it is used.  Ports are
// mended at the end: soft HCAs outlive a run, and one that failed half way would fail later ones.
std::string run_threads(int ranks, Scenario scenario, const Config& config = gin_config(),
                        void (*adjust)(Fabric&) = nullptr);
// `name` finds the scenario in the other program: see register_scenario.
std::string run_processes(int ranks, const std::string& name);

// The rank processes of run_processes, for tests that kill one.
class RankProcesses {
 public:
  RankProcesses(int ranks, const std::string& name);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  // One exchange or barrier of all that live; false when a rank has ended instead.
  bool serve();
  // The same for one rank alone: it says where it is.
  bool serve_one(int rank);
  void kill(int rank);
  // Serves until all have ended; error texts.
  std::string finish();

 private:
  struct Process {
    pid_t pid = -1;
    int fd = -1;
  };
  std::vector<Process> ranks_;
};

struct NamedScenario {
  NamedScenario(const char* name, Scenario scenario);
};

std::string text(const char* what, std::int64_t a = 0, std::int64_t b = 0, std::int64_t c = 0);

// How long a CPU thread that plays a kernel waits: for ever would hide the failure.
inline constexpr std::int64_t kLimit = 40 * kSecond;

inline gda::ContextSettings settings28(int signals = 64, int counters = 64) {
  gda::ContextSettings s;
  s.signals = signals;
  s.counters = counters;
  return s;
}
inline gda::ContextSettings settings30(int contexts = 1) {
  gda::ContextSettings s = settings28();
  s.contexts = contexts;
  s.layout = gda::DeviceLayout::v2_30_88;
  return s;
}

// What most scenarios start from.
struct Member {
  std::unique_ptr<gda::GinComm> comm;
  std::unique_ptr<gda::GinContext> context;  // null: one of the two could not be made
  int rank = 0;

  // A CPU thread's part of a kernel on the context.
  template <class Kernel = gda::GinKernel28>
  Kernel kernel(std::int64_t limit_ns = kLimit) const {
    return Kernel(context->device_handle(), rank, limit_ns);
  }
};
// Collective; as Rank::connect.
Member join(const Rank& r, const gda::ContextSettings& settings = settings28(), int device = -1,
            const CommSettings& comm = {});

// Until the word at that offset of a window is no less: 0, or -ETIMEDOUT.
template <class Memory>
int wait_word(Memory& memory, std::size_t offset, std::uint64_t least) {
  const std::int64_t end = now_ns() + kLimit;
  while (memory.word(offset) < least) {
    if (now_ns() > end) return -ETIMEDOUT;
    sched_yield();
  }
  return 0;
}

}  // namespace twinpath::test

// In scenarios: leave with a text.
#define TRY_GIN(expr)                                                       \
  do {                                                                      \
    if (const auto tp_code = static_cast<std::int64_t>(expr); tp_code != 0) \
      return twinpath::test::text(#expr " failed", tp_code, __LINE__);      \
  } while (0)
#define EXPECT_GIN(condition, ...)                                                    \
  do {                                                                                \
    if (!(condition))                                                                 \
      return twinpath::test::text(#condition " is false" __VA_OPT__(, ) __VA_ARGS__); \
  } while (0)
