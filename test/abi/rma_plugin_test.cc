// The built plugin's RMA tables, driven as NCCL 2.30.7 drives them: its thread for host RMA and its
// proxy of kernels that communicate, each with a comm of its own, at once.
//
// TWINPATH_TEST_PLUGIN names the library.  The process has no CUDA driver, so all memory is host
// memory.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>

#include "test/abi/built_plugin.h"
#include "test/abi/gin_team.h"
#include "test/abi/rma_team.h"
#include "test/support/catch.h"
#include "test/support/descriptors.h"
#include "test/support/log_capture.h"
#include "test/support/pattern.h"

namespace twinpath::test {
namespace {

using Clock = std::chrono::steady_clock;

class Plugin : private BuiltPlugin {
 public:
  Plugin() : rmas(all_rma_versions([this](const char* symbol) { return find(symbol); })) {
    REQUIRE(rmas.size() == 3);
    // 2.30.7 would take the first for an RMA plugin of older make.
    REQUIRE(find("ncclGinPlugin_v13") == nullptr);
    REQUIRE(find("ncclRmaPlugin_v13") == nullptr);
  }
  using BuiltPlugin::nets;
  std::vector<std::unique_ptr<AnyRma>> rmas;
};

// A rank of a communicator: the contexts of its plugins, as commAlloc makes them.
struct RankContexts {
  RankContexts(Plugin& plugin, AnyRma& t, LogSink log) : net_(*plugin.nets.back()), rma_(t) {
    must(net_.init(&net, log, -1), "NET init");
    must(rma_.init(&rma, 0x5eed, log), "RMA init");
    must(rma_.init(&gin, 0x5eed, log), "RMA init for GIN");
  }
  // In NCCL's order.
  ~RankContexts() {
    (void)net_.finalize(net);
    (void)rma_.finalize(gin);
    (void)rma_.finalize(rma);
  }
  AnyNet& net_;
  AnyRma& rma_;
  void *net = nullptr, *rma = nullptr, *gin = nullptr;
};

// putSignal to all, waitSignal from all, as one stream would.
void all_to_all(RmaHost& h, int context, Bootstrap& boot, std::size_t bytes, unsigned rounds) {
  const auto ranks = static_cast<std::size_t>(h.ranks_);
  const Pages out(bytes * ranks), in(bytes * ranks);
  void* const src = h.reg(out);
  void* const dst = h.reg(in);
  std::vector<std::uint64_t> before;
  for (int r = 0; r < h.ranks_; ++r) before.push_back(h.signal(r));
  boot.wait();
  const auto mine = static_cast<std::size_t>(h.rank_);
  for (unsigned round = 1; round <= rounds; ++round) {
    std::deque<void*> requests;
    for (std::size_t r = 0; r < ranks; ++r) {
      sent_bytes(h.rank_, static_cast<int>(r), round).fill(out.data() + r * bytes, bytes);
      void* request = nullptr;
      must(h.t_.iput_signal(h.ctx, context, {r * bytes, src, bytes, mine * bytes, dst},
                            static_cast<std::uint32_t>(r),
                            {mine * 8, h.signals_mh, 1, abi::kSignalAdd, true}, &request),
           "iputSignal");
      must(request != nullptr, "a request");
      requests.push_back(request);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      h.wait_signal(static_cast<int>(r), before[r] + round);
      const KnownBytes want = sent_bytes(static_cast<int>(r), h.rank_, round);
      must(want.differs_at(in.data() + r * bytes, bytes) == bytes, "data of a put");
    }
    for (void* request : requests) h.wait(request);
    boot.wait();
  }
  bool failed = true;
  must(h.t_.query_last_error(h.ctx, &failed), "queryLastError");
  must(!failed, "no error of a healthy context");
  must(h.t_.dereg(h.comm, src), "deregMrSym");
  must(h.t_.dereg(h.comm, dst), "deregMrSym");
}

}  // namespace

// NCCL gives RMA memory that no other process can open, and fails windows for it.
TEST_CASE("The soft HCA offers no RMA that was not asked for", "[unasked][.]") {
  Plugin plugin;
  LogCapture log;
  for (auto& t : plugin.rmas) {
    INFO("version " << t->version());
    void* ctx = &log;
    REQUIRE(t->init(&ctx, 0x5eed, current_sink()) == abi::ncclSuccess);
    CHECK(ctx == nullptr);
    int n = -1;
    REQUIRE(t->devices(&n) == abi::ncclSuccess);
    CHECK(n == 0);
  }
  CHECK(log.has(LogLevel::info, "RMA is not offered"));
}

TEST_CASE("RMA's init, devices and properties start no thread and open no file") {
  LogCapture log;
  Plugin plugin;
  void* net = nullptr;
  REQUIRE(plugin.nets.back()->init(&net, current_sink(), -1) == abi::ncclSuccess);
  const std::size_t threads = entries_of("/proc/self/task");
  const std::size_t files = entries_of("/proc/self/fd");
  for (auto& t : plugin.rmas) {
    void* ctx = nullptr;
    CHECK(t->init(&ctx, 1, current_sink()) == abi::ncclSuccess);
    int n = 0, nets = 0;
    CHECK(t->devices(&n) == abi::ncclSuccess);
    CHECK(plugin.nets.back()->devices(&nets) == abi::ncclSuccess);
    CHECK(n == nets);
    abi::ncclNetProperties_v12_t props;
    CHECK(t->properties(0, &props) == abi::ncclSuccess);
    CHECK(entries_of("/proc/self/task") == threads);
    CHECK(entries_of("/proc/self/fd") == files);
    CHECK(t->finalize(ctx) == abi::ncclSuccess);
  }
  CHECK(plugin.nets.back()->finalize(net) == abi::ncclSuccess);
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("NCCL 2.30.7 and 2.31: host RMA between 1, 2 and 4 ranks") {
  for (const int ranks : {1, 2, 4}) {
    LogCapture log;
    Plugin plugin;
    const LogSink sink = current_sink();
    for (auto& t : plugin.rmas) {
      CHECK(on_ranks(ranks, [&](int rank, Bootstrap& boot) {
              RankContexts contexts(plugin, *t, sink);
              RmaHost h(*t, boot, rank, contexts.rma, contexts.net, 1);
              all_to_all(h, 0, boot, 1, 3);
              all_to_all(h, 0, boot, 100003, 3);
              boot.wait();
            }) == no_failures(ranks));
    }
    CHECK(log.warnings() == std::vector<std::string>{});
  }
}

TEST_CASE("NCCL's RMA thread and its GIN thread drive a comm each, at once") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  for (auto& t : plugin.rmas) {
    Bootstrap gin_boot(2);
    CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
            RankContexts contexts(plugin, *t, sink);
            RmaHost rma(*t, boot, rank, contexts.rma, contexts.net, 1);
            RmaHost gin(*t, boot, rank, contexts.gin, contexts.gin, 4);
            std::string wrong;
            std::thread thread([&] {
              try {
                for (int c = 0; c < 4; ++c) all_to_all(gin, c, gin_boot, 4096, 30);
              } catch (const std::exception& e) {
                wrong = e.what();
              }
              gin_boot.leave();
            });
            try {
              all_to_all(rma, 0, boot, 70000, 60);
            } catch (...) {
              thread.join();
              throw;
            }
            thread.join();
            must(wrong.empty(), wrong);
            boot.wait();
          }) == no_failures(2));
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("NCCL's proxy of kernels: signals alone, values, gets and flushes") {
  LogCapture log;
  Plugin plugin;
  const LogSink sink = current_sink();
  for (auto& t : plugin.rmas) {
    CHECK(on_ranks(2, [&](int rank, Bootstrap& boot) {
            RankContexts contexts(plugin, *t, sink);
            RmaHost h(*t, boot, rank, contexts.gin, contexts.gin, 2);
            const Pages mine(8192), got(8192);
            sent_bytes(rank, 0, 0).fill(mine.data(), mine.size());
            void* const from = h.reg(mine);
            void* const to = h.reg(got);
            boot.wait();
            const int peer = 1 - rank;
            const auto there = static_cast<std::uint32_t>(peer);
            // INC by whatever value; ADD; on a word of a window (VA signal).
            void* request = nullptr;
            must(t->iput_signal(h.ctx, 1, {}, there, {8, h.signals_mh, 1, abi::kSignalInc, false},
                                &request),
                 "INC");
            h.wait(request);
            must(t->iput_signal(h.ctx, 1, {}, there,
                                {8, h.signals_mh, 0x123456789a, abi::kSignalAdd, true}, &request),
                 "ADD");
            h.wait(request);
            h.wait_signal(1, 0x123456789b);
            must(
                t->iput_signal(h.ctx, 0, {}, there, {4096, to, 7, abi::kSignalAdd, true}, &request),
                "VA signal");
            h.wait(request);
            const auto end = Clock::now() + RmaHost::kSoon;
            auto& word = reinterpret_cast<std::uint64_t*>(got.data())[512];
            while (std::atomic_ref(word).load(std::memory_order_acquire) != 7) {
              must(t->progress(h.ctx), "rmaProgress");
              must(Clock::now() < end, "a VA signal arrives");
            }
            must(t->iget(h.ctx, 0, {100, from, 3000, 300, to}, there, &request), "iget");
            must(request != nullptr, "a request of a get");
            h.wait(request);
            must(t->iflush(h.ctx, 0, h.signals_mh, there, &request), "iflush");
            if (request != nullptr) h.wait(request);
            for (std::size_t i = 0; i < 3000; ++i)
              must(got.data()[300 + i] == sent_bytes(peer, 0, 0)[100 + i], "data of a get");
            // Refused, and the context works on.
            request = &word;
            must(t->iput(h.ctx, 0, {0, from, 100, 8190, to}, there, &request) ==
                     abi::ncclInvalidArgument,
                 "outside the window");
            must(request == nullptr, "no request");
            must(t->iput(h.ctx, 0, {0, nullptr, 100, 0, to}, there, &request) ==
                     abi::ncclInvalidArgument,
                 "no handle");
            must(t->iput(h.ctx, 0, {0, from, 0, 0, to}, 2, &request) == abi::ncclInvalidArgument,
                 "no such rank");
            abi::ncclNetProperties_v12_t props;
            must(t->properties(1000, &props) == abi::ncclInvalidArgument, "no such device");
            must(t->iput(h.ctx, 0, {}, there, &request), "nothing");
            h.wait(request);
            boot.wait();
            must(t->dereg(h.comm, from), "deregMrSym");
            must(t->dereg(h.comm, to), "deregMrSym");
          }) == no_failures(2));
    CHECK(log.has(LogLevel::warn, "are outside the window of 8192 bytes of rank"));
    log.clear();
  }
}

TEST_CASE("an aborted communicator is closed with requests outstanding, in any order") {
  Plugin plugin;
  const LogSink sink = current_sink();
  for (auto& t : plugin.rmas) {
    CHECK(on_ranks(3, [&](int rank, Bootstrap& boot) {
            RankContexts contexts(plugin, *t, sink);
            auto h = std::make_unique<RmaHost>(*t, boot, rank, contexts.rma, contexts.net, 1);
            const Pages pages(1 << 20);
            void* const window = h->reg(pages);
            boot.wait();
            void* request = nullptr;
            // Each rank has a place of its own at the others.
            constexpr std::uint64_t size = 1 << 17;
            const std::uint64_t to = (1 << 19) + static_cast<std::uint64_t>(rank) * size;
            for (std::uint32_t i = 0; i < 300; ++i)
              must(t->iput_signal(h->ctx, 0, {0, window, size, to, window}, i % 3,
                                  {0, h->signals_mh, 1, abi::kSignalAdd, true}, &request),
                   "iputSignal");
            const auto start = Clock::now();
            if (rank == 0) (void)t->dereg(h->comm, window);
            if (rank == 2) {  // before its context
              must(t->close_coll(h->comm), "closeColl");
              h->comm = nullptr;
              h->signals_mh = nullptr;
            }
            h.reset();
            must(Clock::now() - start < std::chrono::seconds(10), "closing waited");
            boot.wait();
          }) == no_failures(3));
  }
}

}  // namespace twinpath::test
