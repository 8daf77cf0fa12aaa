// The GIN tables over a transport that does as it is told: what is passed on, what becomes of
// each Status, and what having the tables costs.  [off] runs with TWINPATH_GIN=0.
#include <algorithm>
#include <climits>
#include <cstdlib>

#include "plugin/nccl/default_name.h"
#include "test/abi/fake_caller.h"
#include "test/abi/fake_transport.h"
#include "test/abi/gin_any.h"
#include "test/abi/gin_fake.h"
#include "test/abi/one_sided_tables.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

extern "C" const twinpath::abi::ncclGin_v11_t ncclGinPlugin_v11;
extern "C" const twinpath::abi::ncclGin_v14_t ncclGinPlugin_v14;

namespace twinpath::test {
namespace {

std::vector<std::unique_ptr<AnyGin>> versions() {
  return all_gin_versions([](std::string_view symbol) -> const void* {
    if (symbol == "ncclGinPlugin_v11") return &ncclGinPlugin_v11;
    return &ncclGinPlugin_v14;
  });
}

// What NCCL 2.28 makes at the first use: init again, listen, connect with the communicator's own
// ctx (null for all but the first), createContext, closeListen.
class Connected {
 public:
  explicit Connected(AnyGin& t, int ranks = 3, int rank = 1, LogSink log = current_sink()) : t_(t) {
    const int made = gin().made;
    gin() = GinState{.made = made};
    REQUIRE(t.init(&instance, kCommId, log) == abi::ncclSuccess);
    REQUIRE(t.listen(instance, 1, own.data(), &listener) == abi::ncclSuccess);
    std::vector<Handle> all(static_cast<std::size_t>(ranks));
    std::vector<void*> handles;
    for (int r = 0; r < ranks; ++r) {
      Handle& handle = all[static_cast<std::size_t>(r)];
      handle.fill(static_cast<std::uint8_t>(r + 1));
      handles.push_back(handle.data());
    }
    REQUIRE(t.connect(nullptr, handles.data(), ranks, rank, listener, &comm) == abi::ncclSuccess);
    REQUIRE(t.create_context(comm, config, &ctx, &device) == abi::ncclSuccess);
    REQUIRE(t.close_listen(listener) == abi::ncclSuccess);
  }
  ~Connected() {
    gin().answer = Status::ok;
    gin().throws = false;
    CHECK(t_.destroy_context(ctx) == abi::ncclSuccess);
    CHECK(t_.close_coll(comm) == abi::ncclSuccess);
    CHECK(t_.finalize(instance) == abi::ncclSuccess);
    CHECK(gin().contexts == 0);
    CHECK(gin().comms == 0);
    CHECK(gin().listeners == 0);
  }
  AnyGin& t_;
  Handle own{};
  abi::ncclGinConfig_v14_t config{.nSignals = 7,
                                  .nCounters = 5,
                                  .nContexts = 2,
                                  .queueDepth = 64,
                                  .trafficClass = 3,
                                  .backendVersion = 2,
                                  .rankStride = 2};
  void* instance = kGarbage;
  void* listener = kGarbage;
  void* comm = kGarbage;
  void* ctx = kGarbage;
  abi::ncclNetDeviceHandle_t* device = nullptr;
};

}  // namespace

// No libnccl-net-again.so is beside this program.
TEST_CASE("a missing libnccl-net-again.so is a warning for the releases that need it", "[again]") {
  struct Row {
    int nccl;
    const char* kept;  // NCCL_NET_PLUGIN_REF_COUNT
    bool warned;
  };
  for (const Row& row : std::vector<Row>{{0, nullptr, false},
                                         {22802, nullptr, false},
                                         {22803, nullptr, true},
                                         {22907, "0", true},
                                         {22907, "1", false},
                                         {22908, nullptr, false}}) {
    INFO("NCCL " << row.nccl << ", kept " << (row.kept != nullptr ? row.kept : "no"));
    LogCapture log;
    if (row.kept != nullptr) ::setenv("NCCL_NET_PLUGIN_REF_COUNT", row.kept, 1);
    keep_default_name("/nonexistent", row.nccl);
    ::unsetenv("NCCL_NET_PLUGIN_REF_COUNT");
    CHECK(log.warnings().size() == (row.warned ? 1 : 0));
    CHECK(log.has(row.warned ? LogLevel::warn : LogLevel::info, "NCCL_NET_PLUGIN_REF_COUNT=1"));
    CHECK(log.has("/nonexistent/libnccl-net-again.so"));
  }
}

TEST_CASE("the release that opens the plugin is asked for its version", "[again][.]") {
  const unsigned long before = warnings_logged();
  fake_nccl_version = 22809;
  void* ctx = nullptr;
  REQUIRE(versions().front()->init(&ctx, kCommId, fake_nccl_log) == abi::ncclSuccess);
  CHECK(warnings_logged() == before + 1);
  CHECK(versions().front()->finalize(ctx) == abi::ncclSuccess);
}

TEST_CASE("with TWINPATH_GIN=0 there are no GIN devices, and init keeps nothing", "[off][.]") {
  NEEDS(turned_off("TWINPATH_GIN"), "TWINPATH_GIN=0 is not set");
  LogCapture log;
  for (auto& t : versions()) check_off(*t);
  CHECK(gin().made == 0);
}

TEST_CASE("before init everything is refused") {
  LogCapture log;
  for (auto& t : versions()) {
    AnyProps props;
    CHECK(t->properties(0, props) == abi::ncclInvalidUsage);
    check_before_init(*t);
  }
}

TEST_CASE("init, devices and properties make no transport; the first listen makes the only one") {
  LogCapture log;
  for (auto& t : versions()) {
    void* ctx = nullptr;
    CHECK(t->init(&ctx, kCommId, current_sink()) == abi::ncclSuccess);
    CHECK(ctx != nullptr);
    int n = -1;
    CHECK(t->devices(&n) == abi::ncclSuccess);
    CHECK(n == 2);
    AnyProps props;
    CHECK(t->properties(0, props) == abi::ncclSuccess);
    CHECK(t->finalize(ctx) == abi::ncclSuccess);
  }
  CHECK(gin().made == 0);
  auto all = versions();
  void* listener = kGarbage;
  Handle handle{};
  gin().make = Status::system;
  CHECK(all[0]->listen(nullptr, 0, handle.data(), &listener) == abi::ncclSystemError);
  CHECK(listener == nullptr);
  gin().make = Status::ok;
  for (int i = 0; i < 2; ++i) {
    CHECK(all[0]->listen(nullptr, 0, handle.data(), &listener) == abi::ncclSuccess);
    CHECK(all[0]->close_listen(listener) == abi::ncclSuccess);
  }
  CHECK(gin().made == 2);  // the failed one, and one that stays
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("GIN devices have NET's names and properties, and are of type GDAKI") {
  LogCapture log;
  const NetAdapter<abi::ncclNet_v12_t> net_table(&ncclNetPlugin_v12);
  AnyNet& net = const_cast<NetAdapter<abi::ncclNet_v12_t>&>(net_table);
  for (auto& t : versions()) {
    INFO("version " << t->version());
    CHECK(std::string(t->name()) == net.name());
    for (const int dev : {0, 1}) {
      AnyProps g, n;
      REQUIRE(t->properties(dev, g) == abi::ncclSuccess);
      REQUIRE(net.properties(dev, n) == abi::ncclSuccess);
      CHECK(g.name_pointer == n.name_pointer);  // one string for all, kept for ever
      CHECK(g.pci_path == n.pci_path);
      CHECK(g.guid == n.guid);
      CHECK(g.ptr_support == n.ptr_support);
      CHECK(g.speed == n.speed);
      CHECK(g.port == n.port);
      CHECK(g.latency == n.latency);
      CHECK(g.max_comms == n.max_comms);
      CHECK(g.max_recvs == n.max_recvs);
      CHECK(g.reg_is_global == n.reg_is_global);
      CHECK(g.force_flush == n.force_flush);
      CHECK(g.ndevs == n.ndevs);
      CHECK(g.first_dev == n.first_dev);
      CHECK(g.max_p2p == n.max_p2p);
      CHECK(g.max_coll == n.max_coll);
      CHECK(g.max_multi == n.max_multi);
      CHECK(g.rail == (t->version() == 11 ? -1 : n.rail));
      CHECK(g.plane == (t->version() == 11 ? -1 : n.plane));
      CHECK(n.device_type == 0);
      CHECK(g.device_type == 3);
      CHECK(g.device_version == (t->version() == 11 ? 100 : 200));
    }
    AnyProps p;
    CHECK(t->properties(2, p) == abi::ncclInvalidArgument);
  }
}

TEST_CASE("v11 counts the devices that NET merged, v14 only ports") {
  if (turned_off("TWINPATH_GIN")) return;
  LogCapture log;
  const NetAdapter<abi::ncclNet_v12_t> net_table(&ncclNetPlugin_v12);
  AnyNet& net = const_cast<NetAdapter<abi::ncclNet_v12_t>&>(net_table);
  void* ctx = nullptr;
  REQUIRE(net.init(&ctx, current_sink(), -1) == abi::ncclSuccess);
  int merged = -1;
  REQUIRE(net.make_vdevice(&merged, {0, 1}) == abi::ncclSuccess);
  for (auto& t : versions()) {
    INFO("version " << t->version());
    int n = -1;
    REQUIRE(t->devices(&n) == abi::ncclSuccess);
    CHECK(n == (t->version() == 11 ? merged + 1 : 2));
  }
  CHECK(net.finalize(ctx) == abi::ncclSuccess);
}

TEST_CASE("listen and connect pass on device, rank, every handle and the communicator's id") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    CHECK(gin().device == 1);
    CHECK(c.own[0] == 0x77);
    CHECK(c.own[127] == 0x77);
    CHECK(gin().rank == 1);
    CHECK(gin().comm_id == kCommId);  // from listen's ctx: connect's is null
    REQUIRE(gin().handles.size() == 3);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(gin().handles[r].front() == r + 1);
      CHECK(gin().handles[r].back() == r + 1);
    }
    CHECK(gin().listeners == 0);
    CHECK(gin().comms == 1);
  }
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("v11's contexts have the queues of the release that calls") {
  struct Row {
    int nccl;
    gda::DeviceLayout layout;
    int told;
  };
  LogCapture log;
  for (const Row& row :
       {Row{0, gda::DeviceLayout::v2_28, 100},  // not known
        Row{22807, gda::DeviceLayout::v2_28, 100}, Row{22907, gda::DeviceLayout::v2_28, 100},
        Row{23003, gda::DeviceLayout::v2_30_72, 200},
        Row{23004, gda::DeviceLayout::v2_30_72, 200}}) {
    INFO("NCCL " << row.nccl);
    fake_nccl_version = row.nccl;
    const auto all = versions();
    Connected c(*all.front(), 3, 1, fake_nccl_log);
    CHECK(gin().settings.layout == row.layout);
    REQUIRE(c.device != nullptr);
    CHECK(c.device->netDeviceVersion == row.told);
  }
}

TEST_CASE("a context gets its settings and the layout that the kernels were compiled for") {
  LogCapture log;
  for (auto& t : versions()) {
    INFO("version " << t->version());
    Connected c(*t);
    REQUIRE(c.device != nullptr);
    CHECK(c.device->netDeviceType == 3);
    CHECK(c.device->netDeviceVersion == (t->version() == 11 ? 100 : 200));
    CHECK(c.device->handle == reinterpret_cast<void*>(kFakeContextAddress));
    CHECK(c.device->size == 0);
    CHECK(c.device->needsProxyProgress == 0);
    const gda::ContextSettings& s = gin().settings;
    CHECK(s.signals == 7);
    CHECK(s.counters == 5);
    if (t->version() == 11) {
      CHECK(s.contexts == 1);
      CHECK(s.queue_depth == 0);
      CHECK(s.traffic_class == -1);
      CHECK(s.rank_stride == 1);
      CHECK(s.layout == gda::DeviceLayout::v2_28);
      continue;
    }
    CHECK(s.contexts == 2);
    CHECK(s.queue_depth == 64);
    CHECK(s.traffic_class == 3);
    CHECK(s.rank_stride == 2);
    CHECK(s.layout == gda::DeviceLayout::v2_30_88);
    const auto again = [&](abi::ncclGinConfig_v14_t config) {
      void* ctx = kGarbage;
      abi::ncclNetDeviceHandle_t* device = nullptr;
      const auto result = t->create_context(c.comm, config, &ctx, &device);
      CHECK((ctx != nullptr) == (result == abi::ncclSuccess));
      CHECK((device != nullptr) == (result == abi::ncclSuccess));
      CHECK(t->destroy_context(ctx) == abi::ncclSuccess);
      return result;
    };
    abi::ncclGinConfig_v14_t config{};
    config.trafficClass = INT_MIN;  // what NCCL passes when nobody set one
    for (const int old : {0, 1}) {
      config.backendVersion = old;
      CHECK(again(config) == abi::ncclSuccess);
      CHECK(s.layout == gda::DeviceLayout::v2_30_72);
    }
    CHECK(s.traffic_class == -1);
    CHECK(s.contexts == 1);
    CHECK(s.rank_stride == 1);
    CHECK(s.signals == 0);
    for (const int depth : {INT_MIN, -1, 0, 1, 193, 1 << 20}) {  // what is too much gda/ knows
      config.queueDepth = depth;
      CHECK(again(config) == abi::ncclSuccess);
      CHECK(s.queue_depth == std::max(0, depth));
    }
    config.queueDepth = 0;
    for (const int unknown : {-1, 3}) {
      config.backendVersion = unknown;
      CHECK(again(config) == abi::ncclInvalidUsage);
    }
    CHECK(log.has(LogLevel::warn, "known are 0 to 2"));
  }
}

TEST_CASE("v14 says which signals there are") {
  abi::ncclGinProperties_v14_t props;
  std::memset(&props, 0xA5, sizeof props);
  auto all = versions();
  const Connected c(*all.back());
  REQUIRE(ncclGinPlugin_v14.getGinProperties(&props) == abi::ncclSuccess);
  CHECK(props.supportsStrongSignals);
  CHECK(props.supportsVASignals);
  CHECK(ncclGinPlugin_v14.getGinProperties(nullptr) == abi::ncclInvalidArgument);
}

TEST_CASE("windows are registered with type, flags and dma-buf as given, and given back") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    int data = 0;
    void* mh = nullptr;
    void* window = nullptr;
    REQUIRE(t->reg(c.comm, &data, 4096, abi::kPtrCuda, 0, &mh, &window) == abi::ncclSuccess);
    CHECK(mh != nullptr);
    CHECK(window == reinterpret_cast<void*>(kFakeWindowAddress));
    CHECK(gin().data == &data);
    CHECK(gin().bytes == 4096);
    CHECK(gin().type == MemoryType::cuda);
    CHECK(gin().fd == -1);
    CHECK((!gin().traits.strict && !gin().traits.never_reset));
    CHECK(t->dereg(c.comm, mh) == abi::ncclSuccess);
    CHECK(static_cast<void*>(gin().deregistered) == mh);
    REQUIRE(t->reg_dmabuf(c.comm, &data, 8192, abi::kPtrHost, 512, 33, 3, &mh, &window) ==
            abi::ncclSuccess);
    CHECK(gin().type == MemoryType::host);
    CHECK(gin().offset == 512);
    CHECK(gin().fd == 33);
    CHECK((gin().traits.strict && gin().traits.never_reset));
    CHECK(t->reg(c.comm, &data, 1, 99, 0, &mh, &window) == abi::ncclInvalidArgument);
    CHECK(mh == nullptr);
    CHECK(window == nullptr);
    CHECK(t->dereg(c.comm, nullptr) == abi::ncclSuccess);
  }
}

TEST_CASE("a context's failure is what queryLastError says, and progress has nothing to do") {
  for (auto& t : versions()) {
    Connected c(*t);
    bool failed = true;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(!failed);
    gin().failed = true;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(failed);
    CHECK(t->progress(t->version() == 11 ? c.comm : c.ctx) == abi::ncclSuccess);
  }
}

TEST_CASE("closing a comm ends the contexts that were not given back, which may still come") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    void* other = nullptr;
    abi::ncclNetDeviceHandle_t* device = nullptr;
    REQUIRE(t->create_context(c.comm, c.config, &other, &device) == abi::ncclSuccess);
    CHECK(gin().contexts == 2);
    CHECK(t->destroy_context(other) == abi::ncclSuccess);
    CHECK(gin().contexts == 1);
    gin().gone.clear();
    CHECK(t->close_coll(c.comm) == abi::ncclSuccess);
    CHECK(gin().gone == std::vector<std::string>{"context", "comm"});
    bool failed = false;
    CHECK(t->query_last_error(c.ctx, &failed) == abi::ncclSuccess);
    CHECK(failed);
    CHECK(t->destroy_context(c.ctx) == abi::ncclSuccess);
    c.comm = c.ctx = nullptr;
  }
}

TEST_CASE("every Status becomes its result, exceptions stop, and results are cleared") {
  LogCapture log;
  const std::pair<Status, abi::ncclResult_t> kAll[] = {
      {Status::bad_argument, abi::ncclInvalidArgument},
      {Status::no_memory, abi::ncclSystemError},
      {Status::system, abi::ncclSystemError},
      {Status::remote, abi::ncclRemoteError},
      {Status::closed, abi::ncclRemoteError},
      {Status::unsupported, abi::ncclInvalidUsage},
      {Status::internal, abi::ncclInternalError},
      {Status::ok, abi::ncclInternalError}};
  for (auto& t : versions()) {
    Connected c(*t);
    void* mh = nullptr;
    void* window = nullptr;
    REQUIRE(t->reg(c.comm, &c, 4096, abi::kPtrCuda, 0, &mh, &window) == abi::ncclSuccess);
    Handle handle{};
    void* handles[] = {handle.data()};
    void* listener = nullptr;
    REQUIRE(t->listen(nullptr, 0, handle.data(), &listener) == abi::ncclSuccess);
    for (const auto& [status, result] : kAll) {
      gin().answer = status;
      gin().throws = status == Status::ok;  // the last one throws
      void *l = kGarbage, *comm = kGarbage, *ctx = kGarbage, *m = kGarbage, *w = kGarbage;
      auto* device = static_cast<abi::ncclNetDeviceHandle_t*>(kGarbage);
      CHECK(t->listen(nullptr, 0, handle.data(), &l) == result);
      CHECK(l == nullptr);
      CHECK(t->connect(c.instance, handles, 1, 0, listener, &comm) == result);
      CHECK(comm == nullptr);
      CHECK(t->create_context(c.comm, c.config, &ctx, &device) == result);
      CHECK(ctx == nullptr);
      CHECK(device == nullptr);
      CHECK(t->reg(c.comm, &c, 1, abi::kPtrCuda, 0, &m, &w) == result);
      CHECK(m == nullptr);
      CHECK(w == nullptr);
      CHECK(t->dereg(c.comm, mh) == result);
    }
    CHECK(log.has(LogLevel::warn, "planted"));
    gin().answer = Status::ok;
    gin().throws = false;
    CHECK(t->close_listen(listener) == abi::ncclSuccess);
  }
}

TEST_CASE("null and senseless arguments are refused by name") {
  LogCapture log;
  for (auto& t : versions()) {
    Connected c(*t);
    Handle handle{};
    void* out = nullptr;
    void* handles[] = {handle.data(), nullptr};
    void* listener = nullptr;
    abi::ncclNetDeviceHandle_t* device = nullptr;
    const auto bad = abi::ncclInvalidArgument;
    REQUIRE(t->listen(nullptr, 0, handle.data(), &listener) == abi::ncclSuccess);
    CHECK(t->init(nullptr, 0, current_sink()) == bad);
    CHECK(t->devices(nullptr) == bad);
    CHECK(t->listen(c.instance, 0, nullptr, &out) == bad);
    CHECK(t->listen(c.instance, 0, handle.data(), nullptr) == bad);
    CHECK(t->connect(nullptr, nullptr, 1, 0, listener, &out) == bad);
    CHECK(t->connect(nullptr, handles, 1, 0, nullptr, &out) == bad);
    CHECK(t->connect(nullptr, handles, 1, 0, listener, nullptr) == bad);
    CHECK(t->connect(nullptr, handles, 0, 0, listener, &out) == bad);
    CHECK(t->connect(nullptr, handles, 1, 1, listener, &out) == bad);
    CHECK(t->connect(nullptr, handles, 1, -1, listener, &out) == bad);
    CHECK(t->connect(nullptr, handles, 2, 0, listener, &out) == bad);
    CHECK(t->create_context(nullptr, c.config, &out, &device) == bad);
    CHECK(t->create_context(c.comm, c.config, nullptr, &device) == bad);
    CHECK(t->create_context(c.comm, c.config, &out, nullptr) == bad);
    CHECK(t->create_context(c.comm, {.nSignals = -1}, &out, &device) == bad);
    CHECK(t->create_context(c.comm, {.nCounters = -1}, &out, &device) == bad);
    CHECK(t->reg(nullptr, &c, 1, abi::kPtrCuda, 0, &out, &out) == bad);
    CHECK(t->reg(c.comm, &c, 1, abi::kPtrCuda, 0, nullptr, &out) == bad);
    CHECK(t->reg(c.comm, &c, 1, abi::kPtrCuda, 0, &out, nullptr) == bad);
    CHECK(t->dereg(nullptr, &c) == bad);
    CHECK(t->query_last_error(c.ctx, nullptr) == bad);
    CHECK(t->destroy_context(nullptr) == abi::ncclSuccess);
    CHECK(t->close_coll(nullptr) == abi::ncclSuccess);
    CHECK(t->close_listen(nullptr) == abi::ncclSuccess);
    CHECK(t->close_listen(listener) == abi::ncclSuccess);
  }
}

TEST_CASE("v11's puts by the host say that kernels do that here") {
  LogCapture log;
  const abi::ncclGin_v11_t& t = ncclGinPlugin_v11;
  void* request = kGarbage;
  CHECK(t.iput(nullptr, 0, nullptr, 8, 0, nullptr, 1, &request) == abi::ncclInvalidUsage);
  CHECK(request == nullptr);
  request = kGarbage;
  CHECK(t.iputSignal(nullptr, 0, nullptr, 0, 0, nullptr, 1, 0, nullptr, 1, 1, &request) ==
        abi::ncclInvalidUsage);
  CHECK(request == nullptr);
  int done = 1;
  CHECK(t.test(nullptr, nullptr, &done) == abi::ncclInvalidUsage);
  CHECK(done == 0);
  CHECK(log.has(LogLevel::warn, "type GDAKI"));
}

}  // namespace twinpath::test
