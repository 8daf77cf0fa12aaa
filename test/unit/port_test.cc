// From a verbs table to ports, over devices and a sysfs that the test makes up.
#include "plugin/fabric/port.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/provider.h"

#include <endian.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "plugin/rdma/shown_place.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/refuse.h"

namespace twinpath {
namespace {

namespace fs = std::filesystem;

struct FakeDevice : ibv_device {
  int ports = 1;
  std::map<int, ibv_port_attr> attr;
  std::uint64_t guid = 0x1122334455667788;
  int dmabuf_errno = EBADF;
  bool open_fails = false;
  int gids = 2;
  std::uint32_t vendor_id = 0;
};

struct FakeHost {
  std::vector<FakeDevice> devices;
  int open_contexts = 0, open_pds = 0;
};
// The table's functions have no context argument.
FakeHost& fake_host() {
  static FakeHost h;
  return h;
}

FakeDevice& device_of(ibv_context* c) { return *static_cast<FakeDevice*>(c->device); }

ibv_device** get_device_list(int* count) {
  *count = static_cast<int>(fake_host().devices.size());
  auto** list = new ibv_device*[fake_host().devices.size() + 1]();
  for (std::size_t i = 0; i < fake_host().devices.size(); ++i) list[i] = &fake_host().devices[i];
  return list;
}

Verbs fake_verbs() {
  Verbs v;
  v.get_device_list = &get_device_list;
  v.free_device_list = [](ibv_device** list) { delete[] list; };
  v.get_device_guid = [](ibv_device* d) -> __be64 {
    return htobe64(static_cast<FakeDevice*>(d)->guid);
  };
  v.open_device = [](ibv_device* d) -> ibv_context* {
    if (static_cast<FakeDevice*>(d)->open_fails) {
      errno = EACCES;
      return nullptr;
    }
    ++fake_host().open_contexts;
    auto* c = new ibv_context{};
    c->device = d;
    return c;
  };
  v.close_device = [](ibv_context* c) {
    --fake_host().open_contexts;
    delete c;
    return 0;
  };
  v.query_device = [](ibv_context* c, ibv_device_attr* a) {
    *a = {};
    a->phys_port_cnt = static_cast<std::uint8_t>(device_of(c).ports);
    a->max_qp = 1000;
    a->vendor_id = device_of(c).vendor_id;
    return 0;
  };
  v.query_gid = [](ibv_context* c, std::uint8_t, int index, ibv_gid* gid) {
    *gid = {};
    if (index < device_of(c).gids) {
      gid->raw[10] = gid->raw[11] = 0xff;
      gid->raw[12] = 10;
      gid->raw[15] = static_cast<std::uint8_t>(index + 1);
    }
    return 0;
  };
  v.alloc_pd = [](ibv_context* c) {
    ++fake_host().open_pds;
    auto* pd = new ibv_pd{};
    pd->context = c;
    return pd;
  };
  v.dealloc_pd = [](ibv_pd* pd) {
    --fake_host().open_pds;
    delete pd;
    return 0;
  };
  v.reg_dmabuf_mr = [](ibv_pd* pd, std::uint64_t, std::size_t, std::uint64_t, int, int) -> ibv_mr* {
    errno = device_of(pd->context).dmabuf_errno;
    return nullptr;
  };
  v.query_port = [](ibv_context* c, std::uint8_t port, ibv_port_attr* a) {
    *a = device_of(c).attr.at(port);
    return 0;
  };
  return v;
}

ibv_port_attr port_attr(ibv_port_state state = IBV_PORT_ACTIVE,
                        std::uint8_t link = IBV_LINK_LAYER_ETHERNET) {
  ibv_port_attr a{};
  a.state = state;
  a.active_mtu = IBV_MTU_4096;
  a.gid_tbl_len = 4;
  a.active_speed = 128;
  a.active_width = 2;
  a.link_layer = link;
  a.max_msg_sz = 1u << 30;
  return a;
}

FakeDevice make_device(const char* name, int ports = 1) {
  FakeDevice d{};
  std::strncpy(d.name, name, sizeof d.name - 1);
  d.node_type = IBV_NODE_CA;
  d.transport_type = IBV_TRANSPORT_IB;
  d.ports = ports;
  for (int p = 1; p <= ports; ++p) d.attr[p] = port_attr();
  return d;
}

// A sysfs of its own, gone at the end of the case.
class FakeSysfs {
 public:
  FakeSysfs() {
    std::string pattern = (fs::temp_directory_path() / "twinpath-sysfs-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = fs::canonical(pattern).string();
  }
  ~FakeSysfs() { fs::remove_all(root_); }
  FakeSysfs(const FakeSysfs&) = delete;
  FakeSysfs& operator=(const FakeSysfs&) = delete;
  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    const fs::path file = root_ + "/" + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void pci(const std::string& device, const std::string& address) const {
    const fs::path target = root_ + "/devices/pci0000:00/" + address;
    fs::create_directories(target);
    fs::create_directories(root_ + "/class/infiniband/" + device);
    fs::create_symlink(target, root_ + "/class/infiniband/" + device + "/device");
  }
  void driver(const std::string& address, const std::string& name) const {
    fs::create_directories(root_ + "/bus/pci/drivers/" + name);
    fs::create_symlink(root_ + "/bus/pci/drivers/" + name,
                       root_ + "/devices/pci0000:00/" + address + "/driver");
  }
  // A virtual function of the function at `of`.
  void virtual_function(const std::string& device, const std::string& address,
                        const std::string& of) const {
    pci(device, address);
    fs::create_symlink("../" + of, root_ + "/devices/pci0000:00/" + address + "/physfn");
  }

 private:
  std::string root_;
};

struct Found {
  Status status = Status::ok;
  std::unique_ptr<Fabric> fabric = std::make_unique<Fabric>();
  std::string why;
  std::string names() const {
    std::string out;
    for (const Port& p : fabric->ports) out += (out.empty() ? "" : " ") + p.name;
    return out;
  }
};

Found scan(std::vector<FakeDevice> devices, const Config& config, const std::string& sysfs,
           FabricKind kind = FabricKind::verbs, const Mlx5* mlx5 = nullptr) {
  fake_host().devices = std::move(devices);
  Found f;
  f.fabric->kind = kind;
  f.fabric->verbs = fake_verbs();
  f.status = find_ports(*f.fabric, config, sysfs, f.why, mlx5);
  return f;
}

}  // namespace

TEST_CASE("port speed is lane speed times lanes, and 0 for unknown codes") {
  struct Row {
    unsigned speed;
    std::uint8_t width;
    int mbps;
  };
  const Row rows[] = {{1, 1, 2500},     {4, 2, 40000},   {8, 1, 10000},    {16, 2, 56000},
                      {32, 2, 100000},  {64, 2, 200000}, {128, 2, 400000}, {128, 4, 800000},
                      {256, 2, 800000}, {32, 16, 50000}, {64, 8, 600000},  {0, 2, 0},
                      {128, 0, 0},      {3, 2, 0}};
  for (const Row& row : rows) {
    CAPTURE(row.speed, int{row.width});
    CHECK(port_speed_mbps(row.speed, row.width) == row.mbps);
  }
}

TEST_CASE("a virtual function knows its physical one, and is shown there") {
  FakeSysfs sysfs;
  sysfs.pci("pf0", "0000:17:00.0");
  sysfs.pci("pf1", "0000:17:00.1");
  sysfs.virtual_function("vf0", "0000:17:00.2", "0000:17:00.0");
  sysfs.virtual_function("vf1", "0000:17:01.3", "0000:17:00.0");
  sysfs.virtual_function("vf2", "0000:17:02.0", "0000:17:00.1");
  std::vector<FakeDevice> devices;
  for (const char* name : {"pf0", "pf1", "vf0", "vf1", "vf2"}) devices.push_back(make_device(name));
  test::LogCapture log;
  const Found found = scan(devices, {}, sysfs.root());
  REQUIRE(found.names() == "pf0 pf1 vf0 vf1 vf2");
  const std::string at = fs::path(found.fabric->ports[0].pci_path).parent_path();
  struct Row {
    const char* own;
    const char* physical;
    int port;  // where virtual functions are shown at physical ones
  };
  const Row rows[] = {{"/0000:17:00.0", "", 1},
                      {"/0000:17:00.1", "", 2},
                      {"/0000:17:00.2", "/0000:17:00.0", 3},
                      {"/0000:17:01.3", "/0000:17:00.0", 4},
                      {"/0000:17:02.0", "/0000:17:00.1", 5}};
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    const Port& port = found.fabric->ports[i];
    const Row& row = rows[i];
    CAPTURE(port.name);
    const bool physical = *row.physical == 0;
    CHECK(port.pci_path == at + row.own);
    CHECK(port.physical_function == (physical ? "" : at + row.physical));
    const ShownPlace merged = shown_place(found.fabric->ports, i, true);
    CHECK(merged.pci_path == at + "/0000:17:00.0");  // both physical ones are of one card
    CHECK(merged.port == row.port);
    const ShownPlace apart = shown_place(found.fabric->ports, i, false);
    CHECK(apart.pci_path == (physical ? at + "/0000:17:00.0" : port.pci_path));
    CHECK(apart.port == (physical ? row.port : 1));
  }
}

TEST_CASE("rates as the kernel prints them, and 0 for what is none") {
  const std::pair<const char*, int> rows[] = {{"2.5 Gb/sec (1X SDR)", 2500},
                                              {"40 Gb/sec (4X QDR)", 40000},
                                              {"56 Gb/sec (4X FDR)", 56000},
                                              {"100 Gb/sec (4X EDR)", 100000},
                                              {"400 Gb/sec (4X NDR)", 400000},
                                              {"800 Gb/sec (4X XDR)", 800000},
                                              {"1600 Gb/sec (8X XDR)", 1600000},
                                              {"", 0},
                                              {"-5 Gb/sec", 0},
                                              {"800", 0},
                                              {"800 Mb/sec", 0},
                                              {"99999999999 Gb/sec", 0},
                                              {"unknown", 0}};
  for (const auto& [text, mbps] : rows) {
    CAPTURE(text);
    CHECK(rate_from_text(text) == mbps);
  }
}

// The kernel caps the old field at NDR, and so 4 lanes of XDR look like 400 Gb/s there.
TEST_CASE("a port's speed is the library's, else the kernel's, else that of the old field") {
  FakeSysfs sysfs;
  CHECK(scan({make_device("mlx5_0")}, {}, sysfs.root()).fabric->ports.at(0).speed_mbps == 400000);
  sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "800 Gb/sec (4X XDR)\n");
  CHECK(scan({make_device("mlx5_0")}, {}, sysfs.root()).fabric->ports.at(0).speed_mbps == 800000);
  FakeDevice none = make_device("mlx5_1");
  none.attr[1].active_speed = 0;
  CHECK(scan({none}, {}, sysfs.root()).fabric->ports.at(0).speed_mbps == 10000);
  Found asked;
  asked.fabric->kind = FabricKind::verbs;
  fake_host() = {{make_device("mlx5_0")}, 0, 0};
  asked.fabric->verbs = fake_verbs();
  asked.fabric->verbs.port_speed = [](ibv_context*, std::uint8_t) { return 1'600'000; };
  REQUIRE(find_ports(*asked.fabric, {}, sysfs.root(), asked.why, nullptr) == Status::ok);
  CHECK(asked.fabric->ports.at(0).speed_mbps == 1'600'000);
}

TEST_CASE("ports of one function keep their numbers, and what has no place has none") {
  std::vector<Port> ports(3);
  ports[0].device = ports[1].device = "a";
  ports[0].pci_path = ports[1].pci_path = "/sys/devices/pci0000:00/0000:17:00.0";
  ports[1].number = 2;
  ports[2].device = "b";
  CHECK(shown_place(ports, 0, true).port == 1);
  CHECK(shown_place(ports, 1, true).port == 2);
  CHECK(shown_place(ports, 2, true).port == 1);
  CHECK(shown_place(ports, 2, true).pci_path.empty());
}

TEST_CASE("a port with a data-direct function is offered by it, or both ways, or the usual one") {
  static int reg_error;
  reg_error = EBADF;
  Mlx5 mlx5;
  mlx5.is_supported = [](ibv_device* d) { return std::string_view(d->name) != "other"; };
  mlx5.get_data_direct_sysfs_path = [](ibv_context* c, char* path, std::size_t bytes) {
    if (std::string_view(c->device->name) != "cx8") return ENODEV;
    std::snprintf(path, bytes, "/devices/pci0000:00/0000:03:00.0");
    return 0;
  };
  mlx5.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int,
                          int access) -> ibv_mr* {
    errno = access == kDataDirect ? reg_error : EINVAL;
    return nullptr;
  };
  FakeSysfs sysfs;
  sysfs.pci("cx8", "0000:17:00.0");
  sysfs.pci("cx7", "0000:18:00.0");
  sysfs.pci("other", "0000:19:00.0");
  const std::vector<FakeDevice> devices{make_device("cx8"), make_device("cx7"),
                                        make_device("other")};
  const std::string function = sysfs.root() + "/devices/pci0000:00/0000:03:00.0";
  struct Row {
    int setting, error;
    const Mlx5* mlx5;
    const char* names;
  };
  const Row rows[] = {{1, EBADF, &mlx5, "cx8_dma cx7 other"},
                      {2, EBADF, &mlx5, "cx8 cx8_dma cx7 other"},
                      {0, EBADF, &mlx5, "cx8 cx7 other"},
                      {1, EOPNOTSUPP, &mlx5, "cx8 cx7 other"},
                      {1, EBADF, nullptr, "cx8 cx7 other"}};
  for (const Row& row : rows) {
    CAPTURE(row.setting, row.error, row.names);
    test::LogCapture log;
    reg_error = row.error;
    Config config;
    config.ib_data_direct = row.setting;
    const Found found = scan(devices, config, sysfs.root(), FabricKind::verbs, row.mlx5);
    CHECK(found.names() == row.names);
    bool any = false;
    const std::vector<Port>& ports = found.fabric->ports;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      const bool direct = ports[i].name == "cx8_dma";
      any = any || direct;
      CHECK(ports[i].data_direct == (direct ? function : ""));
      CHECK(shown_place(ports, i, true).pci_path == (direct ? function : ports[i].pci_path));
    }
    CHECK((found.fabric->verbs.reg_data_direct != nullptr) == any);
    CHECK(log.warnings().empty() == (row.error == EBADF));
  }
}

TEST_CASE(
    "inline data are for adapters whose provider is known to honour the flag, or for the bold") {
  struct Row {
    ProviderSigns signs;
    const char* provider;
    bool unset, zero, one;  // NCCL_IB_USE_INLINE
  };
  const Row rows[] = {{{"mlx5_core", 0x02c9, "mlx5_0"}, "mlx5", true, false, true},
                      {{"mlx5_core.sf", 0x15b3, "ibp1s0"}, "mlx5", true, false, true},
                      {{"bnxt_en", 0x14e4, "rocep1s0"}, "bnxt_re", true, false, true},
                      {{"", 0x14e4, "rocep1s0"}, "bnxt_re", true, false, true},
                      {{"", 0, "irdma0"}, "irdma", true, false, true},
                      {{"", 0, "rxe0"}, "rxe", true, false, true},
                      {{"mana", 0x1414, "mana_0"}, "mana", false, false, false},
                      {{"", 0x1414, "roceP2s0"}, "mana", false, false, false},
                      {{"", 0, "mana_0"}, "mana", false, false, false},
                      // A driver says more than a name that anybody may give.
                      {{"mana", 0, "mlx5_0"}, "mana", false, false, false},
                      {{"hfi1", 0x1175, "hfi1_0"}, "", false, false, true},
                      {{"", 0, ""}, "", false, false, true},
                      {{"", 0x7477, "other"}, "soft HCA", true, false, true}};
  for (const Row& row : rows) {
    CAPTURE(row.signs.driver, row.signs.vendor_id, row.signs.device);
    const std::string_view provider = provider_of(row.signs);
    CHECK(provider == row.provider);
    CHECK(inline_use(provider, -1).allowed == row.unset);
    CHECK(inline_use(provider, 0).allowed == row.zero);
    CHECK(inline_use(provider, 1).allowed == row.one);
  }
  CHECK(inline_use("mana", 1).why ==
        "mana ignores IBV_SEND_INLINE, so NCCL_IB_USE_INLINE=1 has no effect");
}

TEST_CASE("a port knows whether it takes inline data, and the log says why") {
  FakeSysfs sysfs;
  sysfs.pci("roce0", "0000:17:00.0");
  sysfs.driver("0000:17:00.0", "mlx5_core");
  sysfs.pci("roce1", "0000:18:00.0");
  sysfs.driver("0000:18:00.0", "mana");
  FakeDevice virtual_one = make_device("roce2"), unknown = make_device("roce3");
  virtual_one.vendor_id = 0x14e4;
  test::LogCapture log;
  const std::vector<FakeDevice> devices{make_device("roce0"), make_device("roce1"), virtual_one,
                                        unknown};
  const Found found = scan(devices, {}, sysfs.root());
  REQUIRE(found.names() == "roce0 roce1 roce2 roce3");
  const auto& ports = found.fabric->ports;
  CHECK(ports[0].inline_data);
  CHECK_FALSE(ports[1].inline_data);
  CHECK(ports[2].inline_data);
  CHECK_FALSE(ports[3].inline_data);
  CHECK(log.has(LogLevel::info,
                "roce1: work requests hold their data themselves where these are "
                "short: no (mana ignores IBV_SEND_INLINE)"));
  CHECK(log.has(LogLevel::info, "NCCL_IB_USE_INLINE=1 if it does"));
  // The soft HCA honours it, unless it plays an adapter that does not.
  FakeDevice played = make_device("soft1");
  played.vendor_id = 0x1414;
  const Found soft = scan({make_device("soft0"), played}, {}, sysfs.root(), FabricKind::soft);
  CHECK(soft.fabric->ports[0].inline_data);
  CHECK_FALSE(soft.fabric->ports[1].inline_data);
}

TEST_CASE("PCI addresses are recognised at the end of a path only") {
  CHECK(pci_address("/sys/devices/pci0000:00/0000:17:00.1") == "0000:17:00.1");
  CHECK(pci_address("0000:ab:1f.0") == "0000:ab:1f.0");
  CHECK(pci_address("/sys/devices/virtual/rxe0").empty());
  CHECK(pci_address("/sys/0000:17:00.1/infiniband").empty());
  CHECK(pci_address("").empty());
}

TEST_CASE("ports are listed in PCI order with names that tell ports of one device apart") {
  FakeSysfs sysfs;
  sysfs.pci("a0", "0000:b1:00.0");
  sysfs.pci("z0", "0000:17:00.0");
  const Found f =
      scan({make_device("nopci"), make_device("a0", 2), make_device("z0")}, {}, sysfs.root());
  CHECK(f.status == Status::ok);
  CHECK(f.names() == "z0 a0:1 a0:2 nopci");
  REQUIRE(f.fabric->ports.size() == 4);
  const Port& p = f.fabric->ports[0];
  CHECK(p.pci_path == sysfs.root() + "/devices/pci0000:00/0000:17:00.0");
  CHECK(p.guid == 0x1122334455667788);
  CHECK(p.speed_mbps == 400000);
  CHECK(p.roce);
  CHECK(p.max_qp == 1000);
  CHECK(p.max_message_bytes == 1u << 30);
  CHECK(p.pd->context == p.context);
  CHECK(f.fabric->ports[1].context == f.fabric->ports[2].context);
  CHECK(f.fabric->ports[3].pci_path.empty());
}

TEST_CASE("closing a fabric closes every device, also those that were not used") {
  {
    auto down = make_device("down");
    down.attr[1].state = IBV_PORT_DOWN;
    const Found f = scan({make_device("a"), down, make_device("b", 2)}, {}, "/nonexistent");
    CHECK(fake_host().open_contexts == 2);
    CHECK(fake_host().open_pds == 2);
  }
  CHECK(fake_host().open_contexts == 0);
  CHECK(fake_host().open_pds == 0);
}

TEST_CASE("a port that is down is named, with a warning when NCCL_IB_HCA asked for it") {
  auto d = make_device("mlx5_0", 2);
  d.attr[2].state = IBV_PORT_INIT;
  test::LogCapture log;
  Config c;
  const Found f = scan({d}, c, "/nonexistent");
  CHECK(f.names() == "mlx5_0");
  CHECK(log.has(LogLevel::info, "mlx5_0:2 is left out: its state is INIT"));
  CHECK(log.warnings().empty());
  c.ib_hca = "mlx5_0:2";
  const Found none = scan({d}, c, "/nonexistent");
  CHECK(none.fabric->ports.empty());
  CHECK(log.has(LogLevel::warn, "mlx5_0:2 is named by NCCL_IB_HCA=mlx5_0:2"));
  CHECK(none.why.find("mlx5_0:2: its state is INIT") != std::string::npos);
}

TEST_CASE("ports carry the rail and plane that NCCL_IB_HCA names") {
  Config c;
  c.ib_hca = "=mlx5_0:1:0:1,mlx5_0:2:3,mlx5_1";
  const Found f = scan({make_device("mlx5_0", 2), make_device("mlx5_1")}, c, "/nonexistent");
  REQUIRE(f.names() == "mlx5_0:1 mlx5_0:2 mlx5_1");
  CHECK(f.fabric->ports[0].place == NetworkPlace{0, 1});
  CHECK(f.fabric->ports[1].place == NetworkPlace{3, -1});
  CHECK(f.fabric->ports[2].place == NetworkPlace{-1, -1});
}

TEST_CASE("a port that takes no packet without a global header is known by its flag") {
  auto d = make_device("mlx5_0", 2);
  d.attr[1].flags = IBV_QPF_GRH_REQUIRED;
  const Found f = scan({d}, {}, "/nonexistent");
  REQUIRE(f.names() == "mlx5_0:1 mlx5_0:2");
  CHECK(f.fabric->ports[0].grh_required);
  CHECK_FALSE(f.fabric->ports[1].grh_required);
}

TEST_CASE("unknown names in NCCL_IB_HCA are warned of together with what exists") {
  test::LogCapture log;
  Config c;
  c.ib_hca = "mlx5_7,rxe0";
  const Found f = scan({make_device("mlx5_0"), make_device("rxe0", 2)}, c, "/nonexistent");
  CHECK(f.names() == "rxe0:1 rxe0:2");
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "names mlx5_7, which this machine does not have"));
  CHECK(log.has(LogLevel::warn, "present: mlx5_0:1, rxe0:1, rxe0:2"));
}

TEST_CASE("NCCL_IB_HCA that cannot be read is an error with a message") {
  test::LogCapture log;
  Config c;
  c.ib_hca = "mlx5_0:x";
  CHECK(scan({make_device("mlx5_0")}, c, "/nonexistent").status == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "NCCL_IB_HCA=mlx5_0:x cannot be read"));
  CHECK(fake_host().open_contexts == 0);
}

TEST_CASE("iWARP adapters are not offered and named as the reason") {
  auto d = make_device("siw0");
  d.transport_type = IBV_TRANSPORT_IWARP;
  test::LogCapture log;
  const Found f = scan({d}, {}, "/nonexistent");
  CHECK(f.fabric->ports.empty());
  CHECK(log.has(LogLevel::info, "siw0 is left out: its transport is iWARP"));
  CHECK(f.why.find("siw0: its transport is iWARP") != std::string::npos);
  CHECK(log.warnings().empty());
}

TEST_CASE("a device that cannot be opened leaves the others usable") {
  auto bad = make_device("bad");
  bad.open_fails = true;
  test::LogCapture log;
  CHECK(scan({bad, make_device("good")}, {}, "/nonexistent").names() == "good");
  CHECK(log.has(LogLevel::warn, "bad is left out: opening the device failed: Permission denied"));
  CHECK(log.has(LogLevel::warn, "this user may not open /dev/infiniband"));
}

TEST_CASE("no device at all is not an error and says so") {
  const Found f = scan({}, {}, "/nonexistent");
  CHECK(f.status == Status::ok);
  CHECK(f.why == "no device found");
}

TEST_CASE("an empty list of devices that the kernel has is told with what may be missing") {
  FakeSysfs sysfs;
  sysfs.write("class/infiniband/rxe0/node_type", "1: CA\n");
  const std::string why = scan({}, {}, sysfs.root()).why;
  for (const char* part :
       {"the kernel has rxe0", "ulimit -n", "seccomp", "/dev/infiniband/uverbs*"})
    CHECK(why.find(part) != std::string::npos);
  CHECK(scan({}, {}, sysfs.root(), FabricKind::soft).why == "no device found");
  FakeSysfs other;
  other.write("class/infiniband", "no folder");
  CHECK(scan({}, {}, other.root()).why == "no device found, as " + other.root() +
                                              "/class/infiniband cannot be read: Not a directory");
}

TEST_CASE("a list of devices that a limit or a profile empties says which") {
  FakeSysfs sysfs;
  sysfs.write("class/infiniband/rxe0/node_type", "1: CA\n");
  struct Row {
    unsigned call, error;
    const char* says;
  };
  for (const Row& row :
       {Row{SYS_getdents64, EPERM, "Operation not permitted; the security profile"},
        Row{SYS_openat, ENOSYS, "Function not implemented; the security profile"},
        Row{SYS_openat, EMFILE, "Too many open files; raise the open file limit"}}) {
    CAPTURE(row.call, row.error);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!test::refuse({row.call}, row.error)) ::_exit(2);
      ::_exit(scan({}, {}, sysfs.root()).why.find(row.says) != std::string::npos ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE("dma-buf is offered only where the probe finds the descriptor bad") {
  struct Row {
    int error;
    bool works;
  };
  for (const Row& row : {Row{EBADF, true}, Row{EOPNOTSUPP, false}, Row{EPROTONOSUPPORT, false}}) {
    auto d = make_device("a");
    d.dmabuf_errno = row.error;
    const Found f = scan({d}, {}, "/nonexistent");
    CAPTURE(row.error);
    REQUIRE(f.fabric->ports.size() == 1);
    CHECK(f.fabric->ports[0].dmabuf == row.works);
  }
}

TEST_CASE("peer memory is known by any of its three marks in sysfs") {
  for (const char* mark :
       {"kernel/mm/memory_peers/nv_mem/version", "kernel/mm/memory_peers/nv_mem_nc/version",
        "module/nvidia_peermem/version"}) {
    FakeSysfs sysfs;
    const Found before = scan({make_device("a")}, {}, sysfs.root());
    CHECK_FALSE(before.fabric->ports.at(0).peermem);
    sysfs.write(mark, "1\n");
    const Found after = scan({make_device("a")}, {}, sysfs.root());
    CHECK(after.fabric->ports.at(0).peermem);
  }
}

TEST_CASE("soft devices take CUDA memory and PCI path from their configuration") {
  auto d = make_device("soft0");
  std::strcpy(d.ibdev_path, "/sys/devices/pci0000:00/0000:17:00.0");
  Config c;
  const Found f = scan({d}, c, "/nonexistent", FabricKind::soft);
  const Port& p = f.fabric->ports.at(0);
  CHECK(p.pci_path == "/sys/devices/pci0000:00/0000:17:00.0");
  CHECK_FALSE(p.peermem);
  CHECK(p.gids.at(0).roce_version == 2);
  c.soft_hcas = "soft0,peermem=yes";
  CHECK(scan({d}, c, "/nonexistent", FabricKind::soft).fabric->ports.at(0).peermem);
  c.soft_cuda = SoftCuda::off;
  CHECK_FALSE(scan({d}, c, "/nonexistent", FabricKind::soft).fabric->ports.at(0).peermem);
}

TEST_CASE("D19: a RoCE version that sysfs does not tell is 0, not what the last read left") {
  FakeSysfs sysfs;
  sysfs.write("class/infiniband/a/ports/1/gid_attrs/types/0", "RoCE v2\n");
  auto d = make_device("a");
  d.gids = 3;
  sysfs.write("class/infiniband/a/ports/1/gid_attrs/types/2", "IB/RoCE v1\n");
  const Found f = scan({d}, {}, sysfs.root());
  const auto& gids = f.fabric->ports.at(0).gids;
  REQUIRE(gids.size() == 3);  // the fourth entry of the table is all zero
  CHECK(gids[0].roce_version == 2);
  CHECK(gids[1].roce_version == 0);
  CHECK(gids[2].roce_version == 1);
}

TEST_CASE("InfiniBand ports carry no RoCE version") {
  FakeSysfs sysfs;
  sysfs.write("class/infiniband/a/ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
  auto d = make_device("a");
  d.attr[1] = port_attr(IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND);
  const Found f = scan({d}, {}, sysfs.root());
  CHECK_FALSE(f.fabric->ports.at(0).roce);
  CHECK(f.fabric->ports.at(0).gids.at(0).roce_version == 0);
}

TEST_CASE("a device without a GUID gets one that is not 0 and differs by name") {
  auto a = make_device("a"), b = make_device("b");
  a.guid = b.guid = 0;
  const Found f = scan({a, b}, {}, "/nonexistent");
  REQUIRE(f.fabric->ports.size() == 2);
  CHECK(f.fabric->ports[0].guid != 0);
  CHECK(f.fabric->ports[0].guid != f.fabric->ports[1].guid);
}

TEST_CASE("more ports than are supported are cut with a warning") {
  std::vector<FakeDevice> many;
  for (int i = 0; i < kMaxPorts + 1; ++i)
    many.push_back(make_device(("d" + std::to_string(i)).c_str()));
  test::LogCapture log;
  const Found f = scan(many, {}, "/nonexistent");
  CHECK(f.fabric->ports.size() == static_cast<std::size_t>(kMaxPorts));
  CHECK(log.has(LogLevel::warn, "d32:1 is left out: 32 ports are in use already"));
}

TEST_CASE("NCCL_IB_DISABLE leaves every fabric without ports") {
  test::LogCapture log;
  Config c;
  c.ib_disable = true;
  for (FabricChoice choice : {FabricChoice::automatic, FabricChoice::soft}) {
    c.fabric = choice;
    auto fabric = open_fabric(c);
    REQUIRE(fabric);
    CHECK((*fabric)->ports.empty());
  }
  CHECK(log.has(LogLevel::info, "NCCL_IB_DISABLE=1: no device is offered"));
  CHECK(log.warnings().empty());
}

TEST_CASE("the soft fabric shows the adapters that its specification asks for") {
  test::LogCapture log;
  Config c;
  c.fabric = FabricChoice::soft;
  c.soft_hcas = "east,speed=200,ports=2,west,speed=400";
  c.soft_job = "unit-" + std::to_string(getpid());
  auto fabric = open_fabric(c);
  REQUIRE(fabric);
  REQUIRE((*fabric)->ports.size() == 3);
  CHECK((*fabric)->kind == FabricKind::soft);
  CHECK((*fabric)->ports[0].name == "east:1");
  CHECK((*fabric)->ports[1].name == "east:2");
  CHECK((*fabric)->ports[2].name == "west");
  CHECK((*fabric)->ports[0].speed_mbps == 200000);
  CHECK((*fabric)->ports[2].speed_mbps == 400000);
  CHECK((*fabric)->ports[0].guid != (*fabric)->ports[2].guid);
  std::string why;
  CHECK(choose_gid((*fabric)->ports[2], c, why));
  CHECK(log.warnings().empty());
}

TEST_CASE("a soft adapter of a provider with XDR shows its speed") {
  Config c;
  c.fabric = FabricChoice::soft;
  c.soft_hcas = "1,like=mlx5-xdr";
  c.soft_job = "unit-" + std::to_string(getpid());
  auto fabric = open_fabric(c);
  REQUIRE(fabric);
  CHECK((*fabric)->ports.at(0).speed_mbps == 800000);
}

TEST_CASE("soft adapters that are down leave an empty fabric and a warning with the reason") {
  test::LogCapture log;
  Config c;
  c.fabric = FabricChoice::soft;
  c.soft_hcas = "east,state=down";
  c.soft_job = "unit-" + std::to_string(getpid());
  auto fabric = open_fabric(c);
  REQUIRE(fabric);
  CHECK((*fabric)->ports.empty());
  CHECK(log.has(LogLevel::warn, "no usable port of the software HCA was found: east:1: its state"));
}

TEST_CASE("a specification of soft adapters that cannot be read is quoted in a warning") {
  test::LogCapture log;
  Config c;
  c.fabric = FabricChoice::soft;
  c.soft_hcas = "east,speed=fast";
  CHECK(open_fabric(c).status() == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "the software HCA cannot be set up"));
  CHECK(log.has(LogLevel::warn, "speed=fast"));
}

TEST_CASE("without a real adapter the automatic choice says why and names the software HCA") {
  test::LogCapture log;
  auto fabric = open_fabric({});
  REQUIRE(fabric);
  NEEDS((*fabric)->ports.empty(), "this machine has a real adapter");
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "RDMA adapter was found: "));
  CHECK(log.has(LogLevel::warn, "TWINPATH_FABRIC=soft"));
}

}  // namespace twinpath
