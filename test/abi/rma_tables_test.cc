// The RMA tables over a transport that does as it is told: what is passed on, and what becomes of
// each Status.  [off] runs with TWINPATH_RMA=0.
#include <climits>

#include "test/abi/one_sided_tables.h"
#include "test/abi/rma_any.h"
#include "test/abi/rma_fake.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

extern "C" const twinpath::abi::ncclRma_v14_t ncclRmaPlugin_v14;
extern "C" const twinpath::abi::ncclRma_v15_t ncclRmaPlugin_v15;
extern "C" const twinpath::abi::ncclRma_v16_t ncclRmaPlugin_v16;

namespace twinpath::test {
namespace {

std::vector<std::unique_ptr<AnyRma>> versions() {
  return all_rma_versions([](std::string_view symbol) -> const void* {
    if (symbol == "ncclRmaPlugin_v14") return &ncclRmaPlugin_v14;
    if (symbol == "ncclRmaPlugin_v15") return &ncclRmaPlugin_v15;
    return &ncclRmaPlugin_v16;
  });
}

// What NCCL makes: init twice, listen with the second's ctx, connect with the NET plugin's.
class Connected {
 public:
  explicit Connected(AnyRma& t, int ranks = 3, int rank = 1) : t_(t) {
    rma() = RmaState{};
    REQUIRE(ncclNetPlugin_v12.init(&net, kCommId, nullptr, current_sink(), nullptr) ==
            abi::ncclSuccess);
    REQUIRE(t.init(&first, kCommId, current_sink()) == abi::ncclSuccess);
    REQUIRE(t.init(&second, kCommId, current_sink()) == abi::ncclSuccess);
    // NCCL writes a traffic class into what it takes for its own context.
    *static_cast<int*>(second) = 105;
    Handle own{};
    REQUIRE(t.listen(second, 1, own.data(), &listener) == abi::ncclSuccess);
    CHECK(own[5] == 0x77);
    std::vector<Handle> all(static_cast<std::size_t>(ranks));
    std::vector<void*> handles;
    for (Handle& handle : all) handles.push_back(handle.data());
    REQUIRE(t.connect(net, handles.data(), ranks, rank, listener, &comm) == abi::ncclSuccess);
    REQUIRE(t.create_context(comm, &config, &ctx) == abi::ncclSuccess);
    REQUIRE(t.close_listen(listener) == abi::ncclSuccess);
    REQUIRE(t.reg(comm, &memory, sizeof memory, abi::kPtrHost, 1, &window) == abi::ncclSuccess);
  }
  ~Connected() {
    rma().answer = Status::ok;
    rma().throws = false;
    CHECK(t_.destroy_context(ctx) == abi::ncclSuccess);
    CHECK(t_.close_coll(comm) == abi::ncclSuccess);
    CHECK(ncclNetPlugin_v12.finalize(net) == abi::ncclSuccess);
    CHECK(t_.finalize(second) == abi::ncclSuccess);
    CHECK(t_.finalize(first) == abi::ncclSuccess);
    CHECK(rma().contexts == 0);
    CHECK(rma().comms == 0);
    CHECK(rma().listeners == 0);
  }
  AnyRma& t_;
  abi::ncclRmaConfig_v14_t config{.nContexts = 4, .trafficClass = 3, .rankStride = 2};
  std::uint64_t memory[64] = {};
  void *net = kGarbage, *first = kGarbage, *second = kGarbage;
  void *listener = kGarbage, *comm = kGarbage, *ctx = kGarbage, *window = kGarbage;
};

}  // namespace

TEST_CASE("with TWINPATH_RMA=0 there are no RMA devices, and init keeps nothing", "[off][.]") {
  NEEDS(turned_off("TWINPATH_RMA"), "TWINPATH_RMA=0 is not set");
  LogCapture log;
  for (auto& t : versions()) check_off(*t);
}

TEST_CASE("before init RMA is refused") {
  LogCapture log;
  for (auto& t : versions()) check_before_init(*t);
}

TEST_CASE("RMA has the NET plugin's devices, or none where GPU memory is not reached") {
  LogCapture log;
  for (auto& t : versions()) {
    rma() = RmaState{};
    CHECK(std::string(t->name()) == "Twinpath");
    void* ctx = nullptr;
    REQUIRE(t->init(&ctx, kCommId, current_sink()) == abi::ncclSuccess);
    CHECK(ctx != nullptr);
    int n = -1, net = -1;
    CHECK(t->devices(&n) == abi::ncclSuccess);
    CHECK(ncclNetPlugin_v12.devices(&net) == abi::ncclSuccess);
    CHECK(n == net);
    for (int dev = 0; dev < n; ++dev) {
      abi::ncclNetProperties_v12_t ours, nets;
      CHECK(t->properties(dev, &ours) == abi::ncclSuccess);
      CHECK(ncclNetPlugin_v12.getProperties(dev, &nets) == abi::ncclSuccess);
      CHECK(ours.name == nets.name);
      CHECK(ours.pciPath == nets.pciPath);
      CHECK(ours.guid == nets.guid);
      CHECK(ours.ptrSupport == nets.ptrSupport);
      CHECK(ours.speed == nets.speed);
      CHECK(ours.port == nets.port);
      CHECK(ours.maxRecvs == nets.maxRecvs);
      CHECK(ours.railId == nets.railId);
      CHECK(ours.vProps.ndevs == nets.vProps.ndevs);
      CHECK(ours.netDeviceType == 2);  // GIN_PROXY
    }
    CHECK(t->finalize(ctx) == abi::ncclSuccess);
    rma().reaches_gpus = false;
    CHECK(t->init(&ctx, kCommId, current_sink()) == abi::ncclSuccess);
    CHECK(ctx == nullptr);
    CHECK(t->devices(&n) == abi::ncclSuccess);
    CHECK(n == 0);
  }
}

TEST_CASE("RMA counts no devices that NET merged") {
  LogCapture log;
  rma() = RmaState{};
  void* net = nullptr;
  REQUIRE(ncclNetPlugin_v12.init(&net, kCommId, nullptr, current_sink(), nullptr) ==
          abi::ncclSuccess);
  int merged = -1, n = -1;
  abi::ncclNetVDeviceProps_v12_t both{2, {0, 1}};
  REQUIRE(ncclNetPlugin_v12.makeVDevice(&merged, &both) == abi::ncclSuccess);
  CHECK(ncclNetPlugin_v12.devices(&n) == abi::ncclSuccess);
  CHECK(n == 3);
  for (auto& t : versions()) {
    CHECK(t->devices(&n) == abi::ncclSuccess);
    CHECK(n == 2);
  }
  CHECK(ncclNetPlugin_v12.finalize(net) == abi::ncclSuccess);
}

TEST_CASE("RMA calls pass on what NCCL says") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    CHECK(rma().comm_id == kCommId);
    CHECK(rma().rank == 1);
    CHECK(rma().device == 1);
    CHECK(rma().settings.contexts == 4);
    CHECK(rma().settings.traffic_class == 3);
    CHECK(rma().settings.rank_stride == 2);
    CHECK((rma().traits.strict && !rma().traits.never_reset));
    CHECK(rma().fd == -1);
    CHECK(rma().bytes == sizeof c.memory);
    auto* const window = static_cast<gda::RmaWindow*>(c.window);
    void* request = kGarbage;
    CHECK(t->iput(c.ctx, 2, {10, c.window, 30, 40, c.window}, 1, &request) == abi::ncclSuccess);
    CHECK(request != nullptr);
    CHECK(rma().call == "put");
    CHECK(!rma().signals);
    CHECK(rma().context == 2);
    CHECK(rma().transfer.local.offset == 10);
    CHECK(rma().transfer.local.window == window);
    CHECK(rma().transfer.remote.offset == 40);
    CHECK(rma().transfer.bytes == 30);
    CHECK(t->iput_signal(c.ctx, 0, {}, 2, {24, c.window, 99, 1, false}, &request) ==
          abi::ncclSuccess);
    CHECK(rma().rank == 2);
    CHECK(rma().transfer.bytes == 0);
    CHECK(rma().transfer.local.window == nullptr);
    CHECK(rma().signal.at.offset == 24);
    CHECK(rma().signal.at.window == window);
    CHECK(rma().signal.add == 1);  // INC
    CHECK(t->iput_signal(c.ctx, 0, {}, 2, {24, c.window, 99, 2, true}, &request) ==
          abi::ncclSuccess);
    CHECK(rma().signal.add == 99);
    CHECK(t->iput_signal(c.ctx, 0, {}, 2, {24, c.window, 99, 3, true}, &request) ==
          abi::ncclInvalidArgument);
    CHECK(request == nullptr);
    CHECK(t->iget(c.ctx, 1, {50, c.window, 8, 60, c.window}, 0, &request) == abi::ncclSuccess);
    CHECK(rma().call == "get");
    CHECK(rma().transfer.remote.offset == 50);
    CHECK(rma().transfer.local.offset == 60);
    CHECK(t->iput(c.ctx, 0, {}, UINT_MAX, &request) == abi::ncclSuccess);
    CHECK(rma().rank == INT_MAX);  // never a rank's
    CHECK(t->iflush(c.ctx, 1, nullptr, 0, &request) == abi::ncclSuccess);
    CHECK(rma().call == "flush");
    CHECK(request != nullptr);
    int done = 7;
    CHECK(t->test(c.comm, request, &done) == abi::ncclSuccess);
    CHECK(done == 0);
    rma().done = true;
    CHECK(t->test(c.comm, request, &done) == abi::ncclSuccess);
    CHECK(done == 1);
    rma().nothing_to_flush = true;
    CHECK(t->iflush(c.ctx, 1, c.window, 0, &request) == abi::ncclSuccess);
    CHECK(request == nullptr);
    CHECK(t->progress(c.ctx) == abi::ncclSuccess);
    CHECK(rma().call == "progress");
    bool failed = true;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(!failed);
    rma().failed = true;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(failed);
    void* other = nullptr;
    CHECK(t->reg_dmabuf(c.comm, c.memory, 8, abi::kPtrCuda, 4096, 5, 2, &other) ==
          abi::ncclSuccess);
    CHECK((rma().fd == 5 && rma().offset == 4096 && rma().type == MemoryType::cuda));
    CHECK((!rma().traits.strict && rma().traits.never_reset));
    CHECK(t->reg(c.comm, c.memory, 8, 3, 0, &other) == abi::ncclInvalidArgument);
    CHECK(t->dereg(c.comm, c.window) == abi::ncclSuccess);
    CHECK(rma().deregistered == window);
  }
}

TEST_CASE("from v16 on RMA says whether any signal shows all puts") {
  for (auto& t : versions()) {
    Connected c(*t);
    for (const bool all : {false, true}) {
      rma().shows_all = all;
      bool shows = !all;
      CHECK(t->any_signal_shows_all(c.comm, &shows) == abi::ncclSuccess);
      CHECK(shows == (all && t->version() >= 16));
    }
    bool shows = true;
    LogCapture log;
    CHECK((t->any_signal_shows_all(nullptr, &shows) == abi::ncclSuccess) == (t->version() < 16));
    CHECK_FALSE(shows);
  }
}

TEST_CASE("what RMA's transport answers becomes NCCL's, and no exception passes") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    void* request = kGarbage;
    int done = 7;
    REQUIRE(t->iput(c.ctx, 0, {0, c.window, 8, 8, c.window}, 0, &request) == abi::ncclSuccess);
    void* const good = request;
    const auto calls = [&](abi::ncclResult_t want) {
      request = kGarbage;
      CHECK(t->iput(c.ctx, 0, {0, c.window, 8, 8, c.window}, 0, &request) == want);
      CHECK(request == nullptr);
      done = 7;
      CHECK(t->test(c.comm, good, &done) == want);
      CHECK(done == 0);
      void* made = kGarbage;
      CHECK(t->create_context(c.comm, &c.config, &made) == want);
      CHECK(made == nullptr);
      made = kGarbage;
      CHECK(t->reg(c.comm, c.memory, 8, abi::kPtrHost, 0, &made) == want);
      CHECK(made == nullptr);
    };
    rma().answer = Status::remote;
    calls(abi::ncclRemoteError);
    rma().answer = Status::bad_argument;
    calls(abi::ncclInvalidArgument);
    rma().answer = Status::ok;
    rma().throws = true;
    calls(abi::ncclInternalError);
    rma().throws = false;
    // Null where there must be something.
    CHECK(t->iput(nullptr, 0, {}, 0, &request) == abi::ncclInvalidArgument);
    CHECK(t->iput(c.ctx, 0, {}, 0, nullptr) == abi::ncclInvalidArgument);
    CHECK(t->test(c.comm, nullptr, &done) == abi::ncclInvalidArgument);
    CHECK(t->create_context(c.comm, nullptr, &request) == abi::ncclInvalidArgument);
    CHECK(t->close_coll(nullptr) == abi::ncclSuccess);
    CHECK(t->destroy_context(nullptr) == abi::ncclSuccess);
    CHECK(t->close_listen(nullptr) == abi::ncclSuccess);
  }
}

TEST_CASE("a comm that is closed before its contexts ends them") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    rma().gone.clear();
    CHECK(t->close_coll(c.comm) == abi::ncclSuccess);
    CHECK(rma().gone == std::vector<std::string>{"context", "comm"});
    c.comm = nullptr;
    void* request = kGarbage;
    CHECK(t->iput(c.ctx, 0, {}, 0, &request) == abi::ncclInvalidArgument);
    bool failed = false;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(failed);
  }
}

}  // namespace twinpath::test
