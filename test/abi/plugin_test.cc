// The built plugin, opened as NCCL opens it and driven through every version's table: both ends in
// one thread, then several at once; reload, fork, abort and bad handles.
//
// TWINPATH_TEST_PLUGIN names the library.  Settings are read once per process, so the tags run as
// programs of their own, each with its environment: [fabric] over whatever adapter the
// environment chooses (the soft HCA in meson.build, real verbs in test/vm), the others over the
// one that they name.  Connections go from the first device to the last, so that with two linked
// adapters the traffic crosses the link.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/abi/built_plugin.h"
#include "test/abi/net_loop.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every version moves data between two comms in one thread", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    CHECK(failure_of([&] {
            Communicator communicator(*net, current_sink());
            Loop loop(*net, communicator.ctx);
            for (const std::size_t bytes :
                 {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20}) {
              send_one(*net, loop, bytes, static_cast<unsigned>(net->version()));
            }
            send_group(*net, loop);
            send_optional(*net, loop);
            flush(*net, loop);
          }) == "");
  }
  CHECK(log.has(LogLevel::info, "version "));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("every device has complete properties, and their count is constant", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    int n = -1, again = -1;
    REQUIRE(net->devices(&n) == abi::ncclSuccess);
    REQUIRE(net->devices(&again) == abi::ncclSuccess);
    CHECK(n >= 1);
    CHECK(again == n);
    std::set<std::string> names;
    for (int dev = 0; dev < n; ++dev) {
      AnyProps p;
      REQUIRE(net->properties(dev, p) == abi::ncclSuccess);
      INFO(p.name);
      CHECK(!p.name.empty());
      CHECK(names.insert(p.name).second);
      CHECK(p.guid != 0);
      CHECK((p.ptr_support & abi::kPtrHost) != 0);
      CHECK(p.speed > 0);
      CHECK(p.max_comms > 0);
      CHECK(p.max_recvs >= 1);
      CHECK(p.max_recvs <= kMaxRecvs);
      CHECK(p.ndevs == 1);
      CHECK(p.first_dev == dev);
      CHECK(p.max_p2p > 0);
      CHECK(p.max_p2p <= abi::kMaxNetSizeBytes);
      CHECK(p.max_coll > 0);
    }
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("the soft HCA shows one device unless told otherwise", "[soft]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    int n = -1;
    REQUIRE(net->devices(&n) == abi::ncclSuccess);
    CHECK(n == 1);
    AnyProps p;
    REQUIRE(net->properties(0, p) == abi::ncclSuccess);
    CHECK(p.name == "soft0");
  }
}

// NCCL reads them when init has returned.
TEST_CASE("the first init over the soft HCA sets what NCCL reads later", "[tuned]") {
  LogCapture log;
  BuiltPlugin plugin;
  CHECK(std::getenv("NCCL_MIN_NCHANNELS") == nullptr);
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    const auto value = [](const char* name) {
      const char* text = std::getenv(name);
      return std::string(text == nullptr ? "(none)" : text);
    };
    CHECK(value("NCCL_NET_GDR_LEVEL") == "SYS");
    CHECK(value("NCCL_MIN_NCHANNELS") == "16");
    CHECK(value("NCCL_BUFFSIZE") == "8388608");
    CHECK(value("NCCL_P2P_NET_CHUNKSIZE") == "(none)");
  }
  int lines = 0;
  for (const LogLine& line : log.lines()) {
    lines += line.text.find("set for NCCL on the soft HCA: ") != std::string::npos ? 1 : 0;
  }
  CHECK(lines == 1);
  CHECK(log.has(LogLevel::info, "kept: NCCL_BUFFSIZE=8388608 (TWINPATH_TUNE=off"));
}

TEST_CASE("TWINPATH_TUNE=off sets nothing", "[untuned]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    Communicator communicator(*net, current_sink());
    CHECK(std::getenv("NCCL_NET_GDR_LEVEL") == nullptr);
    CHECK(std::getenv("NCCL_MIN_NCHANNELS") == nullptr);
  }
  CHECK_FALSE(log.has("set for NCCL"));
}

TEST_CASE("a device index out of range and a handle of rubbish are refused", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    int n = -1;
    REQUIRE(net->devices(&n) == abi::ncclSuccess);
    AnyProps p;
    for (const int dev : {-1, n, 1000}) {
      Handle handle{};
      void* comm = &handle;
      CHECK(net->properties(dev, p) == abi::ncclInvalidArgument);
      CHECK(net->listen(communicator.ctx, dev, handle.data(), &comm) == abi::ncclInvalidArgument);
      CHECK(comm == nullptr);
    }
    Handle rubbish;
    rubbish.fill(0x5C);
    void* comm = &rubbish;
    CHECK(net->connect(communicator.ctx, 0, rubbish.data(), &comm, -1) != abi::ncclSuccess);
    CHECK(comm == nullptr);
  }
}

TEST_CASE("calls without a context use the shared session", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    CHECK(failure_of([&] {
            Communicator communicator(*net, current_sink(), AnyNet::kNoConfig);
            Loop loop(*net, nullptr);
            send_one(*net, loop, 1000, 1);
          }) == "");
    CHECK(net->finalize(nullptr) == abi::ncclSuccess);
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

// NCCL 2.30.7 does, when it sets up GIN on a machine with adapters: it takes the context for that
// of its own transport.
TEST_CASE("a context whose first word NCCL overwrites goes on and ends as ever", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    CHECK(failure_of([&] {
            Communicator communicator(*net, current_sink());
            constexpr int kUndefined = std::numeric_limits<int>::min();
            if (communicator.ctx != nullptr)
              std::memcpy(communicator.ctx, &kUndefined, sizeof kUndefined);
            Loop loop(*net, communicator.ctx);
            send_one(*net, loop, 1000, 1);
          }) == "");
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("the plugin works again after its last finalize and dlclose", "[fabric]") {
  LogCapture log;
  for (int round = 0; round < 3; ++round) {
    BuiltPlugin plugin;
    for (auto& net : plugin.nets) {
      CHECK(failure_of([&] {
              Communicator first(*net, current_sink());
              Communicator second(*net, current_sink());  // init is repeated
              Loop loop(*net, second.ctx);
              send_one(*net, loop, 5000, 2);
            }) == "");
    }
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("NCCL that forgot the plugin's name finds it by the default one", "[soft]") {
  LogCapture log;
  constexpr const char* kDefault = "libnccl-net.so";
  const void* table = nullptr;
  {
    BuiltPlugin plugin;
    table = plugin.find("ncclNetPlugin_v11");
    REQUIRE(table != nullptr);
    const Communicator first(*plugin.nets.back(), current_sink());
  }
  for (int life = 0; life < 2; ++life) {
    BuiltPlugin plugin(kDefault);
    CHECK(plugin.find("ncclNetPlugin_v11") == table);
    CHECK(plugin.find("ncclGinPlugin_v11") != nullptr);
    AnyNet& net = *plugin.nets.back();
    CHECK(failure_of([&] {
            Communicator communicator(net, current_sink());
            Loop loop(net, communicator.ctx);
            send_one(net, loop, 5000, 2);
          }) == "");
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("several communicators on several threads at once do not disturb one another",
          "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  std::vector<std::string> failures(plugin.nets.size());
  std::vector<std::thread> threads;
  const LogSink sink = current_sink();
  for (std::size_t t = 0; t < plugin.nets.size(); ++t) {
    threads.emplace_back([&, t] {
      failures[t] = failure_of([&] {
        AnyNet& net = *plugin.nets[t];
        Communicator one(net, sink);
        Communicator two(net, sink);
        Loop a(net, one.ctx), b(net, two.ctx);
        for (unsigned i = 0; i < 20; ++i) {
          send_one(net, i % 2 == 0 ? a : b, (i + 1) * 3000, static_cast<unsigned>(t) + i);
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == std::vector<std::string>(plugin.nets.size()));
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("memory is registered while another thread moves data on the same comms", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  AnyNet& net = *plugin.nets.back();
  CHECK(failure_of([&] {
          Communicator communicator(net, current_sink());
          Loop loop(net, communicator.ctx);
          std::atomic<bool> stop{false};
          std::string registering;
          std::thread service([&] {
            registering = failure_of([&] {
              std::vector<std::uint8_t> memory(1 << 16);
              while (!stop.load()) {
                for (void* comm : {loop.send, loop.recv}) {
                  void* mr = nullptr;
                  must(net.reg(comm, memory.data(), memory.size(), abi::kPtrHost, &mr), "regMr");
                  must(net.dereg(comm, mr), "deregMr");
                }
              }
            });
          });
          const std::string moving = failure_of([&] {
            for (unsigned i = 0; i < 50; ++i) send_one(net, loop, 10000 + i, i);
          });
          stop.store(true);
          service.join();
          must(moving.empty(), moving);
          must(registering.empty(), registering);
        }) == "");
}

TEST_CASE("comms close with requests outstanding and without their peer, as in an abort",
          "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    CHECK(failure_of([&] {
            Communicator communicator(*net, current_sink());
            const auto start = Clock::now();
            {
              Loop loop(*net, communicator.ctx);
              Buffers b(*net, loop, 1 << 20, 4);
              Op first = loop.irecv({b.in.data()}, {b.in.size()}, {0}, {b.in_mr});
              for (int i = 1; i < 4; ++i) {
                (void)loop.irecv({b.in.data()}, {b.in.size()}, {i}, {b.in_mr});
              }
              (void)loop.isend(b.out.data(), b.out.size(), 0, b.out_mr, &first);
            }
            {
              Handle handle{};
              void* listener = nullptr;
              void* half = nullptr;
              must(net->listen(communicator.ctx, 0, handle.data(), &listener), "listen");
              must(net->connect(communicator.ctx, 0, handle.data(), &half, -1), "connect");
              must(net->close_listen(listener), "closeListen");
              if (half != nullptr) must(net->close_send(half), "closeSend");
            }
            must(Clock::now() - start < std::chrono::seconds(10), "closing waited");
            Loop after(*net, communicator.ctx);
            send_one(*net, after, 4096, 6);
          }) == "");
  }
}

TEST_CASE("a forked child gets an error that says so, not a hang", "[fabric]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    CHECK(failure_of([&] {
            Loop loop(*net, communicator.ctx);
            Buffers b(*net, loop, 64, 1);
            log.clear();
            const pid_t child = ::fork();
            must(child >= 0, "fork");
            if (child == 0) {
              ::alarm(10);
              int wrong = 0, n = 0;
              void* ctx = nullptr;
              void* request = nullptr;
              void* comm = nullptr;
              Handle handle{};
              AnyProps p;
              wrong |= net->init(&ctx, current_sink(), -1) != abi::ncclInvalidUsage;
              wrong |= (net->devices(&n) != abi::ncclInvalidUsage) << 1;
              wrong |= (net->listen(communicator.ctx, 0, handle.data(), &comm) == abi::ncclSuccess)
                       << 2;
              wrong |= (net->isend(loop.send, b.out.data(), 64, 0, b.out_mr, &request) !=
                        abi::ncclInvalidUsage)
                       << 3;
              wrong |= (net->close_send(loop.send) != abi::ncclInvalidUsage) << 4;
              wrong |= !log.has(LogLevel::warn, "was forked from process") << 5;
              ::_exit(wrong);
            }
            int status = -1;
            must(::waitpid(child, &status, 0) == child, "waitpid");
            must(WIFEXITED(status), "the child died or hung");
            must(WEXITSTATUS(status) == 0, "child " + std::to_string(WEXITSTATUS(status)));
            send_one(*net, loop, 100, 3);  // and the parent does not mind
          }) == "");
  }
}

TEST_CASE("without an adapter there is no device, and the log says how to get the soft one",
          "[auto]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    Communicator communicator(*net, current_sink());
    int n = -1;
    CHECK(net->devices(&n) == abi::ncclSuccess);
    CHECK(n == 0);
    AnyProps p;
    CHECK(net->properties(0, p) == abi::ncclInvalidArgument);
  }
  CHECK(log.has("TWINPATH_FABRIC=soft"));
}

TEST_CASE("an iWARP adapter is named with the reason why it is not offered", "[iwarp]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    Communicator communicator(*net, current_sink());
    int n = -1;
    CHECK(net->devices(&n) == abi::ncclSuccess);
    CHECK(n == 0);
    AnyProps p;
    CHECK(net->properties(0, p) == abi::ncclInvalidArgument);
  }
  CHECK(log.has(LogLevel::warn, "its transport is iWARP"));
  CHECK(log.has(LogLevel::warn, "rdma_cm"));  // what is missing
}

TEST_CASE("an unknown value of an option is named and its default kept", "[unknown-option]") {
  LogCapture log;
  BuiltPlugin plugin;
  Communicator communicator(*plugin.nets.back(), current_sink());
  CHECK(log.has(LogLevel::warn, "TWINPATH_CONNECT_TIMEOUT_MS"));
  CHECK(failure_of([&] {
          Loop loop(*plugin.nets.back(), communicator.ctx);
          send_one(*plugin.nets.back(), loop, 128, 1);
        }) == "");
}

TEST_CASE("devices without a PCI path stay apart, since NCCL would lose a merged one", "[merge]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    if (!net->has_make_vdevice()) continue;
    INFO("version " << net->version());
    const Communicator communicator(*net, current_sink());
    int merged = -1;
    for (const std::vector<int>& members : {std::vector{2, 3}, {0, 2}}) {
      CHECK(net->make_vdevice(&merged, members) == abi::ncclInvalidUsage);
      CHECK(log.has(LogLevel::info, "soft0 has no PCI path"));
      CHECK(log.has(LogLevel::info, "NCCL_IB_MERGE_NICS=1"));
      log.clear();
    }
    CHECK(net->make_vdevice(&merged, {2}) == abi::ncclSuccess);
    // Devices with a place stand first.
    REQUIRE(net->make_vdevice(&merged, {0, 1}) == abi::ncclSuccess);
    AnyProps props;
    REQUIRE(net->properties(merged, props) == abi::ncclSuccess);
    CHECK(props.name == "soft2+soft3");
  }
}

TEST_CASE("a soft HCA list that cannot be read makes init an invalid usage", "[bad-soft-hcas]") {
  LogCapture log;
  BuiltPlugin plugin;
  for (auto& net : plugin.nets) {
    INFO("version " << net->version());
    void* ctx = &log;
    CHECK(net->init(&ctx, current_sink(), -1) == abi::ncclInvalidUsage);
    if (net->has_context()) CHECK(ctx == nullptr);
    CHECK(net->finalize(nullptr) == abi::ncclSuccess);
    CHECK(log.warnings().size() >= 1);
    CHECK(log.has(LogLevel::warn, "'colour'"));  // what cannot be read is quoted
    log.clear();
  }
}

}  // namespace twinpath::test
