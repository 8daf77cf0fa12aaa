// The tables over a transport that does as it is told: what is passed on, and what becomes of
// each Status.  Linked with plugin/nccl and test/abi/fake_transport.cc, without fabric or proxy.
#include <climits>
#include <cstdlib>
#include <memory>
#include <vector>

#include "plugin/nccl/boundary.h"
#include "test/abi/any_net.h"
#include "test/abi/fake_transport.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

#define TP_DECLARE(v) extern "C" const twinpath::abi::ncclNet_v##v##_t ncclNetPlugin_v##v
TP_DECLARE(6);
TP_DECLARE(7);
TP_DECLARE(8);
TP_DECLARE(9);
TP_DECLARE(10);
TP_DECLARE(11);
TP_DECLARE(12);

namespace twinpath::test {
namespace {

void* const kOptional = reinterpret_cast<void*>(abi::kOptionalRecvCompletion);
void* const kGarbage = reinterpret_cast<void*>(std::uintptr_t{0xA5A5A5A0});

std::vector<std::unique_ptr<AnyNet>> versions() {
  return all_versions([](const char* symbol) -> const void* {
    switch (std::atoi(symbol + std::string_view("ncclNetPlugin_v").size())) {
      case 6:
        return &ncclNetPlugin_v6;
      case 7:
        return &ncclNetPlugin_v7;
      case 8:
        return &ncclNetPlugin_v8;
      case 9:
        return &ncclNetPlugin_v9;
      case 10:
        return &ncclNetPlugin_v10;
      case 11:
        return &ncclNetPlugin_v11;
      default:
        return &ncclNetPlugin_v12;
    }
  });
}

// An initialised version with one comm of each kind; closes them again.
class Pair {
 public:
  explicit Pair(AnyNet& net) : net_(net) {
    fake() = FakeState{.sessions_alive = fake().sessions_alive};
    REQUIRE(net.init(&ctx_, current_sink(), AnyNet::kNoConfig) == abi::ncclSuccess);
    REQUIRE(net.listen(ctx_, 0, handle_.data(), &listener_) == abi::ncclSuccess);
    REQUIRE(net.connect(ctx_, 0, handle_.data(), &send, 0) == abi::ncclSuccess);
    REQUIRE(net.accept(listener_, &recv) == abi::ncclSuccess);
    REQUIRE(net.reg(recv, bytes.data(), bytes.size(), abi::kPtrHost, &memory) == abi::ncclSuccess);
  }
  ~Pair() {
    fake().throws = false;
    fake().answer = Status::ok;
    CHECK(net_.dereg(recv, memory) == abi::ncclSuccess);
    CHECK(net_.close_send(send) == abi::ncclSuccess);
    CHECK(net_.close_recv(recv) == abi::ncclSuccess);
    CHECK(net_.close_listen(listener_) == abi::ncclSuccess);
    CHECK(net_.finalize(ctx_) == abi::ncclSuccess);
    CHECK(fake().comms_alive == 0);
    CHECK(fake().listeners_alive == 0);
  }
  abi::ncclResult_t irecv(int n, void** request) {
    std::vector<void*> data(16, bytes.data());
    std::vector<std::size_t> sizes(16, 5);
    std::vector<int> tags(16, 3);
    std::vector<void*> memories(16, memory);
    return net_.irecv(recv, n, data.data(), sizes.data(), tags.data(), memories.data(), request);
  }

  void* send = nullptr;
  void* recv = nullptr;
  void* memory = nullptr;
  std::array<std::uint8_t, 64> bytes{};

 private:
  AnyNet& net_;
  void* ctx_ = nullptr;
  void* listener_ = nullptr;
  Handle handle_{};
};

}  // namespace

TEST_CASE("before init every call is refused instead of crashing") {
  // Runs first: afterwards the Context is there for the whole program.
  LogCapture log;
  for (auto& net : versions()) {
    int n = 7;
    AnyProps props;
    Handle handle{};
    void* comm = kGarbage;
    CHECK(net->devices(&n) == abi::ncclInvalidUsage);
    CHECK(n == 0);
    CHECK(net->properties(0, props) == abi::ncclInvalidUsage);
    CHECK(net->listen(nullptr, 0, handle.data(), &comm) == abi::ncclInvalidUsage);
    CHECK(comm == nullptr);
    CHECK(net->finalize(nullptr) == abi::ncclSuccess);
  }
  CHECK(log.has(LogLevel::warn, "called before init"));
}

TEST_CASE(
    "a fabric that refuses its settings makes init an invalid usage, and init can be retried") {
  LogCapture log;
  for (auto& net : versions()) {
    if (Context::get() != nullptr) break;  // an earlier case has opened it
    void* ctx = kGarbage;
    fake().open_fabric = Status::bad_argument;
    CHECK(net->init(&ctx, current_sink(), -1) == abi::ncclInvalidUsage);
    fake().open_fabric = Status::system;
    CHECK(net->init(&ctx, current_sink(), -1) == abi::ncclSystemError);
    if (net->has_context()) CHECK(ctx == nullptr);
    CHECK(net->finalize(net->has_context() ? ctx : nullptr) == abi::ncclSuccess);
  }
  fake().open_fabric = Status::ok;
  void* ctx = nullptr;
  CHECK(versions().back()->init(&ctx, current_sink(), -1) == abi::ncclSuccess);
  CHECK(log.has(LogLevel::info, "version "));
  CHECK(log.has(LogLevel::info, "2 devices: fake0, fake1"));
  CHECK(versions().back()->finalize(ctx) == abi::ncclSuccess);
}

TEST_CASE("every version is there and has its optional members as NCCL wants them") {
  REQUIRE(versions().size() == 7);
  int expected = 6;
  for (auto& net : versions()) {
    CHECK(net->version() == expected++);
    CHECK(std::string(net->name()) == "Twinpath");
    CHECK(net->gpu_driven_members_are_null());
    CHECK(net->has_make_vdevice() == (net->version() >= 9));
    abi::ncclNetAttr_t attr{};
    CHECK(net->set_net_attr(nullptr, &attr) == abi::ncclSuccess);
  }
}

TEST_CASE("what NCCL says of coming operations reaches the communicator's session") {
  LogCapture log;
  for (auto& net : versions()) {
    if (!net->has_context()) continue;
    void* ctx = nullptr;
    REQUIRE(net->init(&ctx, current_sink(), -1) == abi::ncclSuccess);
    fake().last_hints = {};
    CHECK(net->set_net_attr(ctx, nullptr) == abi::ncclSuccess);
    CHECK(fake().last_hints.peers.most == 0);
    // Before a connection between two ranks: send, receive, all-to-all, scatter, gather.
    abi::ncclNetAttr_t attr{{16, 1, 4, 1}, {9, 9, 9, 9}, 0x7c0, ~0u, ~0u};
    CHECK(net->set_net_attr(ctx, &attr) == abi::ncclSuccess);
    CHECK(fake().last_hints.point_to_point);
    CHECK(fake().last_hints.peers.least == 1);
    CHECK(fake().last_hints.peers.most == 16);
    CHECK(fake().last_hints.connections.least == 1);
    CHECK(fake().last_hints.connections.most == 4);
    CHECK_FALSE(fake().last_hints.exact());
    // Before a transfer of an all-reduce.
    attr = {{2, 2, 8, 8}, {16, 1, 4, 1}, 1u << 4, 1u << 1, 1u << 2};
    CHECK(net->set_net_attr(ctx, &attr) == abi::ncclSuccess);
    CHECK_FALSE(fake().last_hints.point_to_point);
    CHECK(fake().last_hints.exact());
    // Nothing is known, and nonsense.
    for (const abi::ncclNetCommAttr_t side :
         {abi::ncclNetCommAttr_t{-1, -1, -1, -1}, abi::ncclNetCommAttr_t{1, 2, 1, 2}}) {
      attr = {side, side, ~0u, ~0u, ~0u};
      CHECK(net->set_net_attr(ctx, &attr) == abi::ncclSuccess);
      CHECK_FALSE(fake().last_hints.point_to_point);
      CHECK(fake().last_hints.peers.most == 0);
      CHECK(fake().last_hints.connections.most == 0);
      CHECK_FALSE(fake().last_hints.exact());
    }
    CHECK(net->finalize(ctx) == abi::ncclSuccess);
  }
}

TEST_CASE("what a device registers is asked for the caller's GPU, not for the first that asked") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    AnyProps first, refused, again;
    REQUIRE(net->properties(1, first) == abi::ncclSuccess);
    fake().gpu_refused = true;
    REQUIRE(net->properties(1, refused) == abi::ncclSuccess);
    fake().gpu_refused = false;
    REQUIRE(net->properties(1, again) == abi::ncclSuccess);
    CHECK(first.ptr_support == 7);
    CHECK(refused.ptr_support == 1);
    CHECK(again.ptr_support == 7);
    CHECK(again.name_pointer == first.name_pointer);  // NCCL keeps it
    CHECK(std::string(first.name_pointer) == "fake1");
  }
}

TEST_CASE("getProperties fills every field of a poisoned struct") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    for (int dev = 0; dev < 2; ++dev) {
      AnyProps p, again;
      REQUIRE(net->properties(dev, p) == abi::ncclSuccess);
      REQUIRE(net->properties(dev, again) == abi::ncclSuccess);
      CHECK(p.name == "fake" + std::to_string(dev));
      CHECK(p.name_pointer == again.name_pointer);  // NCCL keeps it
      CHECK(p.pci_path.empty() == (dev == 0));
      CHECK(p.guid == 100u + static_cast<unsigned>(dev));
      CHECK(p.ptr_support == (dev == 1 ? 7 : 1));
      CHECK(p.speed == 400000);
      CHECK(p.port == 1);
      CHECK(p.latency == 0.0f);
      CHECK(p.max_comms == 65536);
      CHECK(p.max_recvs == kMaxRecvs);
      CHECK(p.device_type == 0);
      CHECK(p.device_version == 0);
      CHECK(p.reg_is_global == 1);
      CHECK(p.force_flush == (net->version() >= 9 && dev == 1 ? 1 : 0));
      CHECK(p.ndevs == 1);
      CHECK(p.first_dev == dev);
      CHECK(p.max_p2p == (net->version() >= 9 ? abi::kMaxNetSizeBytes : 1));
      CHECK(p.max_coll == p.max_p2p);
      CHECK(p.max_multi == 1);
      CHECK(p.rail == (net->version() >= 12 && dev == 1 ? 5 : -1));
      CHECK(p.plane == (net->version() >= 12 && dev == 1 ? 0x4006 : -1));
    }
    AnyProps none;
    for (const int bad : {-1, 1000, INT_MAX}) {
      CHECK(net->properties(bad, none) == abi::ncclInvalidArgument);
    }
  }
}

TEST_CASE(
    "the traffic class arrives from init (v11) or connect (v10), and is unset without config") {
  LogCapture log;
  for (auto& net : versions()) {
    fake() = FakeState{.sessions_alive = fake().sessions_alive};
    void* ctx = nullptr;
    Handle handle{};
    void* comm = nullptr;
    REQUIRE(net->init(&ctx, current_sink(), 42) == abi::ncclSuccess);
    REQUIRE(net->connect(ctx, 1, handle.data(), &comm, 42) == abi::ncclSuccess);
    CHECK(fake().last_session_class == (net->version() >= 10 ? 42 : -1));
    CHECK(fake().last_device == 1);
    CHECK(net->close_send(comm) == abi::ncclSuccess);
    if (net->has_context()) {
      CHECK(fake().last_session.comm_id == 0x1234);
      // Without a context the shared session serves.
      REQUIRE(net->connect(nullptr, 0, handle.data(), &comm, 0) == abi::ncclSuccess);
      CHECK(fake().last_session_class == -1);
      CHECK(net->close_send(comm) == abi::ncclSuccess);
      const int alive = fake().sessions_alive;
      CHECK(net->finalize(ctx) == abi::ncclSuccess);
      CHECK(fake().sessions_alive == alive - 1);
    }
    REQUIRE(net->init(&ctx, current_sink(), AnyNet::kNoConfig) == abi::ncclSuccess);
    REQUIRE(net->connect(net->has_context() ? ctx : nullptr, 1, handle.data(), &comm,
                         AnyNet::kNoConfig) == abi::ncclSuccess);
    CHECK(fake().last_session_class == -1);
    CHECK(net->close_send(comm) == abi::ncclSuccess);
    CHECK(net->finalize(net->has_context() ? ctx : nullptr) == abi::ncclSuccess);
  }
}

TEST_CASE("again means success with a null comm or request, and the same handle buffer") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    fake().answer = Status::again;
    Handle handle{};
    void* comm = kGarbage;
    for (int i = 1; i <= 3; ++i) {
      CHECK(net->connect(nullptr, 0, handle.data(), &comm, 0) == abi::ncclSuccess);
      CHECK(comm == nullptr);
      CHECK(handle[64] == i);
    }
    void* request = kGarbage;
    CHECK(net->isend(pair.send, pair.bytes.data(), 8, 3, nullptr, &request) == abi::ncclSuccess);
    CHECK(request == nullptr);
    request = kOptional;
    CHECK(pair.irecv(1, &request) == abi::ncclSuccess);
    CHECK(request == nullptr);
    CHECK(fake().last_optional);
  }
}

TEST_CASE("irecv passes the optional completion on and always overwrites the request") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    void* request = kOptional;
    REQUIRE(pair.irecv(1, &request) == abi::ncclSuccess);
    CHECK(fake().last_optional);
    CHECK(request != kOptional);
    CHECK(request != nullptr);
    request = nullptr;
    REQUIRE(pair.irecv(kMaxRecvs, &request) == abi::ncclSuccess);
    CHECK_FALSE(fake().last_optional);
    CHECK(fake().last_buffers.size() == kMaxRecvs);
    for (const RecvBuffer& b : fake().last_buffers) {
      CHECK(b.bytes == 5);
      CHECK(b.tag == 3);
      CHECK(b.memory == pair.memory);
      CHECK(b.data == pair.bytes.data());
    }
    for (const int n : {-1, 0, kMaxRecvs + 1, INT_MIN}) {
      request = kOptional;
      CHECK(pair.irecv(n, &request) == abi::ncclInvalidArgument);
      CHECK(request == nullptr);
    }
  }
}

TEST_CASE("test always writes done, and sizes in posting order only when done") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    void* request = nullptr;
    REQUIRE(pair.irecv(3, &request) == abi::ncclSuccess);
    std::array<int, 3> sizes{-7, -7, -7};
    int done = 77;
    fake().completion = {.done = false, .count = 3, .bytes = {1, 2, 3}};
    CHECK(net->test(request, &done, sizes.data()) == abi::ncclSuccess);
    CHECK(done == 0);
    CHECK(sizes == std::array<int, 3>{-7, -7, -7});
    fake().completion.done = true;
    CHECK(net->test(request, &done, sizes.data()) == abi::ncclSuccess);
    CHECK(done == 1);
    CHECK(sizes == std::array<int, 3>{1, 2, 3});
    done = 77;
    CHECK(net->test(request, &done, nullptr) == abi::ncclSuccess);
    CHECK(done == 1);
    fake().answer = Status::remote;
    CHECK(net->test(request, &done, nullptr) == abi::ncclRemoteError);
    CHECK(done == 0);
    fake().answer = Status::ok;
    for (void* bad : {static_cast<void*>(nullptr), kOptional}) {
      done = 77;
      CHECK(net->test(bad, &done, nullptr) == abi::ncclInvalidArgument);
      CHECK(done == 0);
    }
  }
}

TEST_CASE("sizes pass unharmed: zero, the largest int, and beyond it where the version can") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    void* request = nullptr;
    const std::size_t big = net->version() >= 9 ? (std::size_t{5} << 30) : INT_MAX;
    for (const std::size_t size : {std::size_t{0}, std::size_t{INT_MAX}, big}) {
      REQUIRE(net->isend(pair.send, nullptr, size, 9, nullptr, &request) == abi::ncclSuccess);
      CHECK(fake().last_bytes == size);
      CHECK(fake().last_tag == 9);
      REQUIRE(request != nullptr);
    }
    const std::size_t registered = net->version() >= 8 ? (std::size_t{5} << 30) : INT_MAX;
    void* memory = nullptr;
    CHECK(net->reg(pair.send, &memory, registered, abi::kPtrCuda, &memory) == abi::ncclSuccess);
    CHECK(fake().last_registered == registered);
    CHECK(fake().last_type == MemoryType::cuda);
    CHECK(fake().last_fd == -1);
    CHECK(net->dereg(pair.send, memory) == abi::ncclSuccess);
    for (const int type : {0, 3, 4, -1}) {
      CHECK(net->reg(pair.send, &memory, 8, type, &memory) == abi::ncclInvalidArgument);
    }
    if (net->version() < 9) {
      const auto negative = static_cast<std::size_t>(-1);  // an int of -1 in the old versions
      CHECK(net->isend(pair.send, nullptr, negative, 0, nullptr, &request) ==
            abi::ncclInvalidArgument);
    }
  }
}

TEST_CASE("a flush with nothing to do gives a null request, and its sizes are ints or null") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    std::vector<void*> data(2, pair.bytes.data());
    std::vector<int> sizes{4, 6};
    std::vector<void*> memories(2, pair.memory);
    void* request = kGarbage;
    REQUIRE(net->iflush(pair.recv, 2, data.data(), sizes.data(), memories.data(), &request) ==
            abi::ncclSuccess);
    CHECK(request != nullptr);
    REQUIRE(fake().last_buffers.size() == 2);
    CHECK(fake().last_buffers[1].bytes == 6);
    fake().null_request = true;
    request = kGarbage;
    CHECK(net->iflush(pair.recv, 2, data.data(), nullptr, memories.data(), &request) ==
          abi::ncclSuccess);
    CHECK(request == nullptr);
    sizes[0] = -1;
    CHECK(net->iflush(pair.recv, 2, data.data(), sizes.data(), memories.data(), &request) ==
          abi::ncclInvalidArgument);
  }
}

TEST_CASE("no exception passes the boundary") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    fake().throws = true;
    void* request = kGarbage;
    const abi::ncclResult_t expected[] = {abi::ncclSystemError, abi::ncclInternalError,
                                          abi::ncclInternalError, abi::ncclSystemError,
                                          abi::ncclSystemError};
    for (int kind = 0; kind < 5; ++kind) {
      log.clear();
      fake().throw_kind = kind;
      request = kOptional;
      CHECK(pair.irecv(1, &request) == expected[kind]);
      CHECK(request == nullptr);
      CHECK(net->isend(pair.send, nullptr, 0, 0, nullptr, &request) == expected[kind]);
      CHECK(log.has(LogLevel::warn, "planted") == (kind == 1));
      // A limit of the system is no defect of ours.
      CHECK(log.has(LogLevel::warn, "ulimit -u") == (kind == 3));
      CHECK(log.has(LogLevel::warn, "security profile") == (kind == 4));
      CHECK(log.has(LogLevel::warn, "this is a defect") == (kind == 1 || kind == 2));
    }
  }
}

TEST_CASE("every status has its NCCL result, and none is in progress") {
  CHECK(to_nccl(Status::ok) == abi::ncclSuccess);
  CHECK(to_nccl(Status::again) == abi::ncclSuccess);
  CHECK(to_nccl(Status::bad_argument) == abi::ncclInvalidArgument);
  CHECK(to_nccl(Status::no_memory) == abi::ncclSystemError);
  CHECK(to_nccl(Status::system) == abi::ncclSystemError);
  CHECK(to_nccl(Status::remote) == abi::ncclRemoteError);
  CHECK(to_nccl(Status::closed) == abi::ncclRemoteError);
  CHECK(to_nccl(Status::unsupported) == abi::ncclInvalidUsage);
  CHECK(to_nccl(Status::internal) == abi::ncclInternalError);
}

TEST_CASE("merged devices are counted in the life that made them, found again, and not doubled") {
  LogCapture log;
  for (auto& net : versions()) {
    if (!net->has_make_vdevice()) continue;
    void* ctx = nullptr;
    for (int life = 0; life < 2; ++life) {
      REQUIRE(net->init(&ctx, current_sink(), -1) == abi::ncclSuccess);
      int n = 0, dev = -1;
      REQUIRE(net->devices(&n) == abi::ncclSuccess);
      CHECK(n == 2);
      REQUIRE(net->make_vdevice(&dev, {0, 1}) == abi::ncclSuccess);
      CHECK(dev == 2);
      REQUIRE(net->devices(&n) == abi::ncclSuccess);
      CHECK(n == 3);
      AnyProps p;
      REQUIRE(net->properties(dev, p) == abi::ncclSuccess);
      CHECK(p.ndevs == 2);
      CHECK(net->make_vdevice(&dev, {}) == abi::ncclInvalidArgument);
      CHECK(net->make_vdevice(&dev, {0, 2}) == abi::ncclInvalidArgument);
      CHECK(net->make_vdevice(&dev, {-1}) == abi::ncclInvalidArgument);
      CHECK(net->make_vdevice(&dev, std::vector<int>(9, 0)) == abi::ncclInvalidArgument);
      CHECK(net->finalize(net->has_context() ? ctx : nullptr) == abi::ncclSuccess);
    }
  }
}

TEST_CASE("null arguments are refused and a null close is nothing") {
  LogCapture log;
  for (auto& net : versions()) {
    Pair pair(*net);
    void* out = nullptr;
    Handle handle{};
    CHECK(net->listen(nullptr, 0, nullptr, &out) == abi::ncclInvalidArgument);
    CHECK(net->connect(nullptr, 0, handle.data(), nullptr, 0) == abi::ncclInvalidArgument);
    CHECK(net->accept(nullptr, &out) == abi::ncclInvalidArgument);
    CHECK(net->reg(nullptr, &out, 8, abi::kPtrHost, &out) == abi::ncclInvalidArgument);
    CHECK(net->isend(nullptr, &out, 8, 0, nullptr, &out) == abi::ncclInvalidArgument);
    CHECK(net->isend(pair.send, &out, 8, 0, nullptr, nullptr) == abi::ncclInvalidArgument);
    CHECK(net->devices(nullptr) == abi::ncclInvalidArgument);
    CHECK(net->dereg(pair.send, nullptr) == abi::ncclSuccess);
    CHECK(net->close_send(nullptr) == abi::ncclSuccess);
    CHECK(net->close_recv(nullptr) == abi::ncclSuccess);
    CHECK(net->close_listen(nullptr) == abi::ncclSuccess);
  }
}

}  // namespace twinpath::test
