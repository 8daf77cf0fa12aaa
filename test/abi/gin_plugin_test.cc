// The built plugin's GIN tables, driven as NCCL drives them (gin_team.h), with CPU threads in the
// place of kernels (gda/abi/gin_kernel.h): NCCL 2.28.9 through v11, 2.30.7 through v14.
//
// TWINPATH_TEST_PLUGIN names the library.  The process has no CUDA driver, so all memory that
// kernels would see is host memory.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "gda/abi/gin_kernel.h"
#include "test/abi/built_plugin.h"
#include "test/abi/fake_caller.h"
#include "test/abi/gin_team.h"
#include "test/support/catch.h"
#include "test/support/descriptors.h"
#include "test/support/log_capture.h"
#include "test/support/pattern.h"

namespace twinpath::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSoon = std::chrono::seconds(10);

// For a rank that stays away: waits until the others have failed.
class Others {
 public:
  explicit Others(int count) : waiting_(count) {}
  void await() {
    const auto end = Clock::now() + kSoon;
    while (waiting_.load() != 0 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // `body`, until it fails or ends.
  template <class Body>
  void run(Body&& body) {
    struct Over {
      std::atomic<int>& waiting;
      ~Over() { --waiting; }
    } const over{waiting_};
    body();
  }

 private:
  std::atomic<int> waiting_;
};

using Kernel28 = gda::GinKernel28;
using Kernel30Old = gda::GinKernel<gda::DeviceQp30, gda::DeviceContext72>;
using Kernel30 = gda::GinKernel30;

abi::ncclGinConfig_v14_t config_of(int backend_version, int contexts = 1) {
  return {.nSignals = 64,
          .nCounters = 16,
          .nContexts = contexts,
          .queueDepth = 128,
          .trafficClass = -1,
          .backendVersion = backend_version,
          .rankStride = 1};
}

// The built plugin's tables.  NET is initialised first, as always.
class Plugin : private BuiltPlugin {
 public:
  Plugin() : gins(all_gin_versions([this](const char* symbol) { return find(symbol); })) {
    REQUIRE(gins.size() == 2);
    REQUIRE(find("ncclGinPlugin_v12") == nullptr);
    REQUIRE(find("ncclGinPlugin_v13") == nullptr);
    REQUIRE(nets.back()->init(&net_ctx_, current_sink(), -1) == abi::ncclSuccess);
  }
  ~Plugin() { (void)nets.back()->finalize(net_ctx_); }
  AnyGin& v11() { return *gins[0]; }
  AnyGin& v14() { return *gins[1]; }

  using BuiltPlugin::nets;
  std::vector<std::unique_ptr<AnyGin>> gins;

 private:
  void* net_ctx_ = nullptr;
};

// nccl-tests' GinAlltoAll on one context: everybody, itself included, gets a piece and a signal.
template <class Kernel>
void all_to_all(Kernel& k, Bootstrap& boot, int rank, const Pages& out, const Pages& in,
                std::uint64_t out_window, std::uint64_t in_window, std::size_t bytes,
                unsigned rounds) {
  const int ranks = boot.ranks();
  const auto piece = [&](int r) { return static_cast<std::size_t>(r) * bytes; };
  const std::uint64_t signal_before = k.read_signal(3);
  const std::uint64_t counter_before = k.read_counter(2);
  boot.wait();
  for (unsigned round = 0; round < rounds; ++round) {
    for (int r = 0; r < ranks; ++r) sent_bytes(rank, r, round).fill(out.data() + piece(r), bytes);
    for (int r = 0; r < ranks; ++r) {
      must(k.put(r, in_window, piece(rank), out_window, piece(r), bytes,
                 {.signal = 3, .add = 1, .counter = 2}) == 0,
           "put to rank " + std::to_string(r));
    }
    const std::uint64_t expected = static_cast<std::uint64_t>(ranks) * (round + 1);
    must(k.wait_signal(3, signal_before + expected) == 0, "signals of all ranks");
    for (int r = 0; r < ranks; ++r) {
      must(sent_bytes(r, rank, round).differs_at(in.data() + piece(r), bytes) == bytes,
           "data of a put");
      must(k.flush(r) == 0, "flush");
    }
    must(k.wait_counter(2, counter_before + expected) == 0, "counters of all puts");
    boot.wait();
  }
}

// The same for every connection and context of a rank.
template <class Kernel, class Context>
void exercise(GinRank& r, Bootstrap& boot, int contexts, std::size_t bytes, unsigned rounds) {
  const auto total = bytes * static_cast<std::size_t>(boot.ranks());
  const Pages out(total), in(total);
  const Window out_window = r.reg(out), in_window = r.reg(in);
  for (std::size_t n = 0; n < r.connections(); ++n) {
    for (int c = 0; c < contexts; ++c) {
      Kernel k(r.devices[n] + static_cast<std::size_t>(c) * sizeof(Context), r.rank(),
               10 * kSecond);
      all_to_all(k, boot, r.rank(), out, in, out_window.windows[n], in_window.windows[n], bytes,
                 rounds);
    }
  }
  must(!r.failed(), "no error of a healthy context");
  boot.wait();  // all puts have landed everywhere
  r.dereg(out_window);
  r.dereg(in_window);
}

}  // namespace

TEST_CASE("GIN's init, devices and properties start no thread and open no file") {
  LogCapture log;
  Plugin plugin;
  const std::size_t threads = entries_of("/proc/self/task");
  const std::size_t files = entries_of("/proc/self/fd");
  for (auto& gin : plugin.gins) {
    void* ctx = nullptr;
    CHECK(gin->init(&ctx, 1, current_sink()) == abi::ncclSuccess);
    int n = 0, net = 0;
    CHECK(gin->devices(&n) == abi::ncclSuccess);
    CHECK(plugin.nets.back()->devices(&net) == abi::ncclSuccess);
    CHECK(n == net);
    AnyProps props;
    CHECK(gin->properties(0, props) == abi::ncclSuccess);
    CHECK(entries_of("/proc/self/task") == threads);
    CHECK(entries_of("/proc/self/fd") == files);
    CHECK(gin->finalize(ctx) == abi::ncclSuccess);
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("NCCL 2.28.9: puts, signals and counters arrive between 1, 2 and 4 ranks") {
  for (const int ranks : {1, 2, 4}) {
    LogCapture log;
    Plugin plugin;
    const LogSink sink = current_sink();
    CHECK(on_ranks(ranks, [&](int rank, Bootstrap& boot) {
            GinRank r(plugin.v11(), sink, boot, rank, 2, true, config_of(0));
            exercise<Kernel28, gda::DeviceContext72>(r, boot, 1, 8, 3);
            exercise<Kernel28, gda::DeviceContext72>(r, boot, 1, 100000, 3);
          }) == no_failures(ranks));
    CHECK(log.warnings() == std::vector<std::string>{});
  }
}

TEST_CASE("NCCL 2.28.9: later communicators have no ctx, and several live side by side") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
          GinRank first(plugin.v11(), sink, boot, rank, 4, true, config_of(0));
          GinRank second(plugin.v11(), sink, boot, rank, 1, false, config_of(0));
          exercise<Kernel28, gda::DeviceContext72>(second, boot, 1, 1000, 2);
          exercise<Kernel28, gda::DeviceContext72>(first, boot, 1, 1000, 2);
          first.close();
          exercise<Kernel28, gda::DeviceContext72>(second, boot, 1, 1000, 2);
          second.close();
          GinRank third(plugin.v11(), sink, boot, rank, 1, false, config_of(0));
          exercise<Kernel28, gda::DeviceContext72>(third, boot, 1, 1000, 2);
        }) == no_failures(2));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("NCCL 2.30.4: kernels of 2.30 find their queues through v11") {
  LogCapture log;
  Plugin plugin;
  fake_nccl_version = 23004;
  CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
          GinRank r(plugin.v11(), fake_nccl_log, boot, rank, 4, true, config_of(0));
          exercise<Kernel30Old, gda::DeviceContext72>(r, boot, 1, 5000, 3);
        }) == no_failures(2));
}

TEST_CASE("NCCL 2.30.7: device communicators of both layouts, with several contexts, in turn") {
  for (const int ranks : {1, 3}) {
    LogCapture log;
    Plugin plugin;
    const LogSink sink = current_sink();
    CHECK(on_ranks(ranks, [&](int rank, Bootstrap& boot) {
            GinRank r(plugin.v14(), sink, boot, rank, 1, true, config_of(2, 2));
            exercise<Kernel30, gda::DeviceContext88>(r, boot, 2, 5000, 2);
            r.destroy_contexts();
            r.create_contexts(config_of(1, 3));
            exercise<Kernel30Old, gda::DeviceContext72>(r, boot, 3, 5000, 2);
          }) == no_failures(ranks));
    CHECK(log.warnings() == std::vector<std::string>{});
  }
}

TEST_CASE("NCCL 2.30.7: gets bring a peer's data, and signal-only requests arrive") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
          GinRank r(plugin.v14(), sink, boot, rank, 1, true, config_of(2));
          const Pages mine(8192), got(8192);
          sent_bytes(rank, 0, 0).fill(mine.data(), mine.size());
          const Window source = r.reg(mine), target = r.reg(got);
          Kernel30 k(r.devices[0], rank, 10 * kSecond);
          boot.wait();
          const int peer = 1 - rank;
          must(k.get(peer, source.windows[0], 100, target.windows[0], 300, 5000) == 0, "get");
          must(k.flush(peer) == 0, "flush of a get");
          for (std::size_t i = 0; i < 5000; ++i)
            must(got.data()[300 + i] == sent_bytes(peer, 0, 0)[100 + i], "data of a get");
          must(k.signal(peer, 5, 1000) == 0, "signal");
          must(k.wait_signal(5, 1000) == 0, "a signal without data");
          must(k.put_value(peer, target.windows[0], 0, 0x1122334455667788u, 8, {.signal = 6}) == 0,
               "put_value");
          must(k.wait_signal(6, 1) == 0, "signal of a value");
          // VA signals: words of a window, with data and without.
          must(k.put(peer, target.windows[0], 4096, source.windows[0], 0, 100,
                     {.signal_window = target.windows[0], .signal_offset = 8, .add = 5}) == 0,
               "put with a VA signal");
          must(k.signal_word(peer, target.windows[0], 16, 7) == 0, "VA signal");
          auto* words = reinterpret_cast<std::uint64_t*>(got.data());
          const auto word = [&](int i) {
            return std::atomic_ref(words[i]).load(std::memory_order_acquire);
          };
          for (const std::int64_t end = now_ns() + 10 * kSecond; word(2) != word(1) + 2;) {
            must(now_ns() < end, "VA signals arrive");
            std::this_thread::yield();
          }
          must(got.data()[4096] == sent_bytes(peer, 0, 0)[0], "data of a VA signal");
          must(*reinterpret_cast<std::uint64_t*>(got.data()) == 0x1122334455667788u, "a value");
          boot.wait();
        }) == no_failures(2));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("closing waits for nobody, whatever the order of ranks, contexts and windows") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  for (auto& gin : plugin.gins) {
    INFO("version " << gin->version());
    CHECK(on_ranks(3, [&](int rank, Bootstrap& boot) {
            GinRank r(*gin, sink, boot, rank, 1, true, config_of(2));
            const Pages pages(65536);
            Window w = r.reg(pages);
            boot.wait();
            // One after the other; rank 1 leaves its window to closeColl, rank 2 closes the comm
            // before the context.
            for (int turn = 0; turn < 3; ++turn) {
              if (turn == rank) {
                const auto start = Clock::now();
                if (rank == 0) r.dereg(w);
                if (rank == 2) {
                  must(gin->close_coll(r.comms[0]), "closeColl");
                  r.comms.clear();
                }
                r.close();
                must(Clock::now() - start < std::chrono::seconds(2), "closing waited");
              }
              boot.wait();
            }
          }) == no_failures(3));
  }
}

// Programs of their own, with a short time limit: see meson.build.
TEST_CASE("a rank that does not connect fails the others within the time limit, by name",
          "[late][.]") {
  Plugin plugin;
  for (auto& gin : plugin.gins) {
    INFO("version " << gin->version());
    LogCapture log;
    const LogSink sink = current_sink();
    const auto start = Clock::now();
    Others others(2);
    const auto failures = on_ranks(3, [&](int rank, Bootstrap& boot) {
      if (rank == 1) {
        // Listens and gets no further.
        void *ctx = nullptr, *listener = nullptr;
        must(gin->init(&ctx, 1, sink), "init");
        Handle handle{};
        must(gin->listen(ctx, 0, handle.data(), &listener), "listen");
        boot.handles[1] = handle;
        boot.wait();
        boot.wait();
        others.await();
        must(gin->close_listen(listener), "closeListen");
        must(gin->finalize(ctx), "finalize");
        return;
      }
      others.run([&] { GinRank r(*gin, sink, boot, rank, 1, true, config_of(0)); });
    });
    CHECK(failures == std::vector<std::string>{"connect: result 6", "", "connect: result 6"});
    CHECK(Clock::now() - start < kSoon);
    CHECK(log.has(LogLevel::warn, "rank 1 ("));
  }
}

TEST_CASE("a rank that stays away from a registration fails it for the others", "[late][.]") {
  Plugin plugin;
  for (auto& gin : plugin.gins) {
    INFO("version " << gin->version());
    LogCapture log;
    const LogSink sink = current_sink();
    const auto start = Clock::now();
    Others others(1);
    const auto failures = on_ranks(2, [&](int rank, Bootstrap& boot) {
      GinRank r(*gin, sink, boot, rank, 1, true, config_of(0));
      const Pages pages(4096);
      if (rank == 0) others.run([&] { (void)r.reg(pages); });
      if (rank == 1) others.await();
    });
    CHECK(failures == std::vector<std::string>{"regMrSym: result 6", ""});
    CHECK(Clock::now() - start < kSoon);
    CHECK(log.has(LogLevel::warn, "rank 1 ("));
  }
}

TEST_CASE("windows come and go while others are in use") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
          GinRank r(plugin.v11(), sink, boot, rank, 1, true, config_of(0));
          for (int i = 0; i < 20; ++i) {
            const Pages extra(4096 * static_cast<std::size_t>(1 + i % 3));
            const Window w = r.reg(extra);
            exercise<Kernel28, gda::DeviceContext72>(r, boot, 1, 64, 1);
            r.dereg(w);
          }
        }) == no_failures(2));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("devices that do not exist, rubbish handles and wrong ranks are refused") {
  LogCapture log;
  Plugin plugin;
  for (auto& gin : plugin.gins) {
    void* ctx = nullptr;
    REQUIRE(gin->init(&ctx, 1, current_sink()) == abi::ncclSuccess);
    int n = 0;
    REQUIRE(gin->devices(&n) == abi::ncclSuccess);
    Handle handle{};
    void* listener = &handle;
    for (const int dev : {-1, n, 1000}) {
      AnyProps p;
      CHECK(gin->properties(dev, p) == abi::ncclInvalidArgument);
      CHECK(gin->listen(ctx, dev, handle.data(), &listener) == abi::ncclInvalidArgument);
      CHECK(listener == nullptr);
    }
    REQUIRE(gin->listen(ctx, 0, handle.data(), &listener) == abi::ncclSuccess);
    Handle rubbish;
    rubbish.fill(0x5C);
    void* handles[] = {handle.data(), rubbish.data()};
    void* comm = &handle;
    CHECK(gin->connect(ctx, handles, 2, 0, listener, &comm) == abi::ncclInvalidArgument);
    CHECK(comm == nullptr);
    void* swapped[] = {rubbish.data(), handle.data()};
    CHECK(gin->connect(ctx, swapped, 2, 0, listener, &comm) == abi::ncclInvalidArgument);
    CHECK(gin->close_listen(listener) == abi::ncclSuccess);
    CHECK(gin->finalize(ctx) == abi::ncclSuccess);
  }
}

TEST_CASE("the GIN plugin works again after dlclose, and not in a forked child") {
  LogCapture log;
  for (int life = 0; life < 2; ++life) {
    Plugin plugin;
    const LogSink sink = current_sink();
    for (auto& gin : plugin.gins) {
      CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
              GinRank r(*gin, sink, boot, rank, 1, true, config_of(2));
              boot.wait();
            }) == no_failures(2));
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        ::alarm(10);
        void *ctx = nullptr, *listener = nullptr;
        Handle handle{};
        int wrong = gin->init(&ctx, 1, sink) != abi::ncclInvalidUsage;
        wrong |= (gin->listen(nullptr, 0, handle.data(), &listener) != abi::ncclInvalidUsage) << 1;
        wrong |= (gin->close_coll(nullptr) != abi::ncclInvalidUsage) << 2;
        ::_exit(wrong);
      }
      int status = -1;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK(status == 0);
    }
  }
}

namespace {

void write_all(int fd, const void* data, std::size_t bytes) {
  must(::write(fd, data, bytes) == static_cast<ssize_t>(bytes), "write to the other process");
}
void read_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::read(fd, at, bytes);
    must(n > 0, "read from the other process");
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// Of two processes that are a rank each, with `fd` between them.
class TwoProcesses : public AllGather {
 public:
  explicit TwoProcesses(int fd) : fd_(fd) {}
  int ranks() const override { return 2; }
  std::vector<Handle> all_gather(int rank, const Handle& mine) override {
    Handle other{};
    write_all(fd_, mine.data(), mine.size());
    read_all(fd_, other.data(), other.size());
    return rank == 0 ? std::vector{mine, other} : std::vector{other, mine};
  }

 private:
  int fd_;
};

}  // namespace

// A program of its own: the other process has to be forked before the plugin is open.
TEST_CASE("a killed peer is an error within 10 s, and its kernels' waits end", "[killed][.]") {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  const int rank = child == 0 ? 1 : 0;
  const int fd = fds[rank];
  ::close(fds[1 - rank]);
  if (child == 0) {
    ::alarm(60);
    LogCapture log;
    Plugin plugin;
    const Pages pages(1 << 20);
    TwoProcesses both(fd);
    GinRank self(plugin.v14(), current_sink(), both, rank, 1, true, config_of(2));
    (void)self.reg(pages);
    char go = 0;
    read_all(fd, &go, 1);
    (void)::raise(SIGKILL);
  }
  LogCapture log;
  Plugin plugin;
  const Pages pages(1 << 20);
  CHECK(on_ranks(1, [&](int, Bootstrap&) {
          TwoProcesses both(fd);
          GinRank self(plugin.v14(), current_sink(), both, rank, 1, true, config_of(2));
          const std::uint64_t window = self.reg(pages).windows[0];
          Kernel30 k(self.devices[0], rank, 20 * kSecond);
          must(k.put(1, window, 0, window, 0, 4096, {.signal = 1}) == 0, "put");
          must(k.flush(1) == 0, "flush to a living peer");
          must(!self.failed(), "no error yet");
          write_all(fd, "x", 1);
          const auto start = Clock::now();
          while (!self.failed()) {
            must(Clock::now() - start < kSoon, "no error within 10 s");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          // What kernels start now ends: with an error here, as success on a GPU.
          (void)k.put(1, window, 0, window, 0, 4096, {.signal = 1});
          must(k.flush(1) != -ETIMEDOUT, "a wait that does not end");
          const auto closing = Clock::now();
          self.close();
          must(Clock::now() - closing < std::chrono::seconds(2), "closing waited for the dead");
        }) == no_failures(1));
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(log.has(LogLevel::warn, "rank 1"));
}

}  // namespace twinpath::test
