// The built plugin, opened as NCCL opens it and driven through every version's table: both ends in
// one thread, then several at once; reload, fork, abort and bad handles.
//
// TWINPATH_TEST_PLUGIN names the library.  Settings are read once per process, so the tags run as
// programs of their own, each with its environment: [fabric] over whatever adapter the
// environment chooses (the soft HCA in meson.build, real verbs in test/vm), the others over the
// one that they name.  Connections go from the first device to the last, so that with two linked
// adapters the traffic crosses the link.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test/abi/any_net.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {
namespace {

using Clock = std::chrono::steady_clock;

const char* plugin_path() {
  const char* path = std::getenv("TWINPATH_TEST_PLUGIN");
  return path == nullptr ? "./libnccl-net.so" : path;
}

// One dlopen, as NCCL does it.
class Plugin {
 public:
  Plugin() : library_(::dlopen(plugin_path(), RTLD_NOW | RTLD_LOCAL)) {
    INFO((library_ == nullptr ? ::dlerror() : ""));
    REQUIRE(library_ != nullptr);
    nets = all_versions([this](const char* symbol) { return ::dlsym(library_, symbol); });
    REQUIRE(nets.size() == 7);
  }
  ~Plugin() { ::dlclose(library_); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  std::vector<std::unique_ptr<AnyNet>> nets;

 private:
  void* library_;
};

// The sink of the current LogCapture, handed to init as NCCL's logger.
LogSink current_sink() {
  const LogSink sink = set_log_sink(nullptr);
  set_log_sink(sink);
  return sink;
}

// Failures are thrown, not REQUIREd: these helpers also run on threads, where Catch2 cannot.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void must(bool ok, const char* what) {
  if (!ok) throw Failure(what);
}
void must(abi::ncclResult_t result, const char* what) {
  if (result != abi::ncclSuccess) throw Failure(what + (": result " + std::to_string(result)));
}

constexpr auto kPatience = std::chrono::seconds(20);

// Calls `step` until it says true.
template <class Step>
void poll_until(const char* what, Step step) {
  const auto deadline = Clock::now() + kPatience;
  while (!step()) {
    if (Clock::now() > deadline) throw Failure(std::string("no end of ") + what);
  }
}

// A started operation and what became of it.
struct Op {
  void* request = nullptr;
  bool done = false;
  std::array<int, kMaxRecvs> sizes{-1, -1, -1, -1, -1, -1, -1, -1};
};

// A communicator's connection to itself: listener, send and receive end in one thread.
class Loop {
 public:
  Loop(AnyNet& net, void* ctx) : net_(net) {
    int devices = 0;
    must(net.devices(&devices), "devices");
    must(devices > 0, "a device: the environment gives none");
    Handle handle{};
    void* listener = nullptr;
    must(net.listen(ctx, devices - 1, handle.data(), &listener), "listen");
    poll_until("connect and accept", [&] {
      if (send == nullptr) must(net.connect(ctx, 0, handle.data(), &send, -1), "connect");
      if (recv == nullptr) must(net.accept(listener, &recv), "accept");
      return send != nullptr && recv != nullptr;
    });
    must(net.close_listen(listener), "closeListen");  // NCCL does so at once
  }
  ~Loop() {
    (void)net_.close_send(send);
    (void)net_.close_recv(recv);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // `receive` makes progress meanwhile: a receiver may announce its buffers as late as in test.
  Op isend(void* data, std::size_t bytes, int tag, void* memory, Op* receive) {
    Op op;
    poll_until("isend", [&] {
      if (receive != nullptr) progress(*receive);
      must(net_.isend(send, data, bytes, tag, memory, &op.request), "isend");
      return op.request != nullptr;
    });
    return op;
  }
  Op irecv(std::vector<void*> data, std::vector<std::size_t> bytes, std::vector<int> tags,
           std::vector<void*> memory, bool optional = false) {
    Op op;
    void* const unwanted = reinterpret_cast<void*>(abi::kOptionalRecvCompletion);
    poll_until("irecv", [&] {
      op.request = optional ? unwanted : nullptr;
      must(net_.irecv(recv, static_cast<int>(data.size()), data.data(), bytes.data(), tags.data(),
                      memory.data(), &op.request),
           "irecv");
      must(op.request != unwanted, "0x1 was overwritten");
      return op.request != nullptr;
    });
    return op;
  }
  void progress(Op& op) {
    if (op.done) return;  // the request is dead
    int now = 77;
    must(net_.test(op.request, &now, op.sizes.data()), "test");
    must(now == 0 || now == 1, "done was written");
    op.done = now == 1;
  }
  void finish(std::initializer_list<Op*> ops) {
    poll_until("requests", [&] {
      bool all = true;
      for (Op* op : ops) {
        progress(*op);
        all = all && op->done;
      }
      return all;
    });
  }

  void* send = nullptr;
  void* recv = nullptr;

 private:
  AnyNet& net_;
};

// A communicator from init to finalize.
class Communicator {
 public:
  Communicator(AnyNet& net, LogSink log, int traffic_class = -1) : net_(net) {
    must(net.init(&ctx, log, traffic_class), "init");
    must(net.has_context() == (ctx != nullptr), "a context where there is one");
  }
  ~Communicator() { (void)net_.finalize(ctx); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  void* ctx = nullptr;

 private:
  AnyNet& net_;
};

std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::uint8_t>((i * 31 + seed * 7 + (i >> 8)) & 0xff);
  }
  return out;
}

// One registered buffer on each side.
struct Buffers {
  Buffers(AnyNet& n, Loop& l, std::size_t bytes, unsigned seed)
      : net(n), loop(l), out(pattern(bytes, seed)), in(bytes) {
    must(net.reg(loop.send, out.data(), bytes, abi::kPtrHost, &out_mr), "regMr");
    must(net.reg(loop.recv, in.data(), bytes, abi::kPtrHost, &in_mr), "regMr");
  }
  ~Buffers() {
    (void)net.dereg(loop.send, out_mr);
    (void)net.dereg(loop.recv, in_mr);
  }
  AnyNet& net;
  Loop& loop;
  std::vector<std::uint8_t> out, in;
  void* out_mr = nullptr;
  void* in_mr = nullptr;
};

void send_one(AnyNet& net, Loop& loop, std::size_t bytes, unsigned seed) {
  Buffers b(net, loop, std::max<std::size_t>(bytes, 1), seed);
  std::fill(b.in.begin(), b.in.end(), std::uint8_t{0});
  Op receive = loop.irecv({b.in.data()}, {bytes}, {5}, {b.in_mr});
  Op send = loop.isend(b.out.data(), bytes, 5, b.out_mr, &receive);
  loop.finish({&send, &receive});
  must(send.sizes[0] == static_cast<int>(bytes), "sent size");
  must(receive.sizes[0] == static_cast<int>(bytes), "received size");
  must(bytes == 0 || b.in == b.out, "received data");
}

// Three receives in one request, sent in another order; the sent sizes come in posting order.
void send_group(AnyNet& net, Loop& loop) {
  constexpr std::size_t kEach = 4096;
  Buffers b(net, loop, 3 * kEach, 9);
  std::uint8_t* in = b.in.data();
  Op receive = loop.irecv({in, in + kEach, in + 2 * kEach}, {kEach, kEach, kEach}, {7, 8, 9},
                          {b.in_mr, b.in_mr, b.in_mr});
  std::uint8_t* out = b.out.data();
  Op second = loop.isend(out + kEach, 100, 8, b.out_mr, &receive);
  Op third = loop.isend(out + 2 * kEach, 0, 9, b.out_mr, &receive);
  Op first = loop.isend(out, kEach, 7, b.out_mr, &receive);
  loop.finish({&first, &second, &third, &receive});
  must(receive.sizes == decltype(receive.sizes){4096, 100, 0, -1, -1, -1, -1, -1},
       "sizes of the group, in posting order and no further");
  must(std::equal(out, out + kEach, in), "first of the group");
  must(std::equal(out + kEach, out + kEach + 100, in + kEach), "second of the group");
}

void send_optional(AnyNet& net, Loop& loop) {
  Buffers b(net, loop, 512, 3);
  std::fill(b.in.begin(), b.in.end(), std::uint8_t{0xEE});
  Op receive = loop.irecv({b.in.data()}, {512}, {1}, {b.in_mr}, true);
  Op send = loop.isend(b.out.data(), 512, 1, b.out_mr, &receive);
  loop.finish({&send, &receive});
  // The completion says nothing about the data, which comes by itself.
  volatile std::uint8_t* last = b.in.data();
  poll_until("the data", [&] {
    for (std::size_t i = 0; i < 512; ++i) {
      if (last[i] != b.out[i]) return false;
    }
    return true;
  });
}

void flush(AnyNet& net, Loop& loop) {
  Buffers b(net, loop, 256, 1);
  void* data = b.in.data();
  int size = 256;
  void* request = reinterpret_cast<void*>(std::uintptr_t{0xA5A5A5A0});
  must(net.iflush(loop.recv, 1, &data, &size, &b.in_mr, &request), "iflush");
  // NCCL passes no place for sizes here.
  for (int done = request == nullptr ? 1 : 0; done == 0;) {
    must(net.test(request, &done, nullptr), "test of a flush");
  }
}

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
  Plugin plugin;
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
  Plugin plugin;
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
  Plugin plugin;
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
  Plugin plugin;
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
  Plugin plugin;
  for (auto& net : plugin.nets) {
    Communicator communicator(*net, current_sink());
    CHECK(std::getenv("NCCL_NET_GDR_LEVEL") == nullptr);
    CHECK(std::getenv("NCCL_MIN_NCHANNELS") == nullptr);
  }
  CHECK_FALSE(log.has("set for NCCL"));
}

TEST_CASE("a device index out of range and a handle of rubbish are refused", "[fabric]") {
  LogCapture log;
  Plugin plugin;
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
  Plugin plugin;
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

TEST_CASE("the plugin works again after its last finalize and dlclose", "[fabric]") {
  LogCapture log;
  for (int round = 0; round < 3; ++round) {
    Plugin plugin;
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

TEST_CASE("several communicators on several threads at once do not disturb one another",
          "[fabric]") {
  LogCapture log;
  Plugin plugin;
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
  Plugin plugin;
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
          must(moving.empty(), moving.c_str());
          must(registering.empty(), registering.c_str());
        }) == "");
}

TEST_CASE("comms close with requests outstanding and without their peer, as in an abort",
          "[fabric]") {
  LogCapture log;
  Plugin plugin;
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
  Plugin plugin;
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
            must(WEXITSTATUS(status) == 0,
                 ("child " + std::to_string(WEXITSTATUS(status))).c_str());
            send_one(*net, loop, 100, 3);  // and the parent does not mind
          }) == "");
  }
}

TEST_CASE("without an adapter there is no device, and the log says how to get the soft one",
          "[auto]") {
  LogCapture log;
  Plugin plugin;
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
  Plugin plugin;
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
  Plugin plugin;
  Communicator communicator(*plugin.nets.back(), current_sink());
  CHECK(log.has(LogLevel::warn, "TWINPATH_CONNECT_TIMEOUT_MS"));
  CHECK(failure_of([&] {
          Loop loop(*plugin.nets.back(), communicator.ctx);
          send_one(*plugin.nets.back(), loop, 128, 1);
        }) == "");
}

TEST_CASE("devices without a PCI path stay apart, since NCCL would lose a merged one", "[merge]") {
  LogCapture log;
  Plugin plugin;
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
  Plugin plugin;
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
