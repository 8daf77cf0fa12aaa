#include "plugin/fabric/port.h"

#include <dirent.h>
#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/gid.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/provider.h"
#include "plugin/fabric/refusal.h"
#include "plugin/fabric/soft_hca.h"

namespace twinpath {
namespace {

constexpr int kUnknownSpeedMbps = 10000;  // what NCCL assumes, too

bool soft_peermem(const std::string& specification, const std::string& device) {
  std::string ignored;
  const SoftHca* const soft = open_soft_hca(ignored);
  std::vector<soft::Adapter> all;
  return soft != nullptr && soft->adapters(specification, all, ignored) &&
         std::any_of(all.begin(), all.end(),
                     [&](const soft::Adapter& a) { return a.name == device && a.peermem; });
}

// 2, as all of a soft HCA that cannot be asked.
int soft_gid_version(const Fabric& fabric, const Port& port, int index) {
  std::string ignored;
  const SoftHca* const soft = open_soft_hca(ignored);
  return soft == nullptr ? 2 : soft->gid_version(fabric.verbs, port.context, index);
}

std::string error_text(int error) {
  std::array<char, 128> buffer{};
  return strerror_r(error, buffer.data(), buffer.size());
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // empty when the kernel refuses (EINVAL for unused GID entries)
  return line;
}

bool exists(const std::string& path) { return std::ifstream(path).good(); }

std::string real_path(const std::string& path) {
  std::array<char, PATH_MAX> out{};
  return realpath(path.c_str(), out.data()) != nullptr ? std::string(out.data()) : std::string();
}

const char* transport_text(ibv_transport_type t) {
  switch (t) {
    case IBV_TRANSPORT_IB:
      return "InfiniBand or RoCE";
    case IBV_TRANSPORT_IWARP:
      return "iWARP";
    case IBV_TRANSPORT_USNIC:
    case IBV_TRANSPORT_USNIC_UDP:
      return "usNIC";
    default:
      return "not a standard transport";
  }
}

// Identifies a device that reports no GUID: equal names give equal values, never 0.
std::uint64_t guid_from_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return hash | 1;
}

// Everything one device lends to its ports.
struct Device {
  std::string name;
  std::string pci_path;
  std::string physical_function;
  std::string data_direct;
  std::uint64_t guid = 0;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_device_attr attr{};
  bool dmabuf = false;
  InlineUse inline_use;
};

class PortFinder {
 public:
  PortFinder(Fabric& fabric, const Config& config, const std::string& sysfs, HcaFilter filter,
             const Mlx5* mlx5)
      : fabric_(fabric), config_(config), sysfs_(sysfs), filter_(std::move(filter)), mlx5_(mlx5) {}

  void run();
  std::string why_none() const;

 private:
  std::string nothing_found() const;
  void look_at(ibv_device* device);
  bool open(ibv_device* device, Device& out);
  InlineUse find_inline_use(const Device& device) const;
  bool probe_dmabuf(ibv_pd* pd) const;
  std::string find_data_direct(const Device& device, ibv_device* of) const;
  void look_at_port(Device& device, std::uint8_t number);
  int find_speed(const Device& device, std::uint8_t number, const ibv_port_attr& attr) const;
  bool peer_memory(const std::string& device) const;
  void order_and_name();
  void report_unknown_names() const;
  void leave_out(const std::string& what, const std::string& why, bool wanted_by_name);

  Fabric& fabric_;
  const Config& config_;
  const std::string& sysfs_;
  HcaFilter filter_;
  const Mlx5* const mlx5_;  // may be null
  std::vector<std::pair<std::string, int>> present_;
  std::vector<std::string> left_out_;
};

void PortFinder::run() {
  int count = 0;
  errno = 0;
  ibv_device** list = fabric_.verbs.get_device_list(&count);
  if (list == nullptr) {
    // ENOSYS is how libibverbs says that the kernel has no RDMA class at all.
    left_out_.push_back(errno == ENOSYS ? "the kernel has no RDMA device"
                                        : "ibv_get_device_list: " + error_text(errno));
    return;
  }
  for (int i = 0; i < count; ++i) look_at(list[i]);
  fabric_.verbs.free_device_list(list);
  report_unknown_names();
  order_and_name();
}

void PortFinder::leave_out(const std::string& what, const std::string& why, bool wanted_by_name) {
  left_out_.push_back(what + ": " + why);
  if (wanted_by_name) {
    TP_WARN("%s is named by NCCL_IB_HCA=%s but cannot be used: %s", what.c_str(),
            config_.ib_hca.c_str(), why.c_str());
  } else {
    TP_INFO(net, "%s is left out: %s", what.c_str(), why.c_str());
  }
}

void PortFinder::look_at(ibv_device* device) {
  Device d;
  d.name = device->name;
  const bool asked_for = !filter_.empty() && !filter_.excludes();
  if (device->transport_type != IBV_TRANSPORT_IB) {
    present_.emplace_back(d.name, 1);
    const bool wanted = asked_for && filter_.accepts(d.name, 1);
    const bool iwarp = device->transport_type == IBV_TRANSPORT_IWARP;
    leave_out(d.name,
              std::string("its transport is ") + transport_text(device->transport_type) +
                  (iwarp ? ", which connects through rdma_cm only" : "") +
                  "; InfiniBand and RoCE are supported",
              wanted);
    return;
  }
  if (!open(device, d)) {
    present_.emplace_back(d.name, 1);
    return;
  }
  for (int port = 1; port <= d.attr.phys_port_cnt; ++port) {
    present_.emplace_back(d.name, port);
    if (filter_.accepts(d.name, port)) {
      look_at_port(d, static_cast<std::uint8_t>(port));
    } else {
      leave_out(d.name + ":" + std::to_string(port),
                "NCCL_IB_HCA=" + config_.ib_hca + " does not take it", false);
    }
  }
  // A device without a usable port keeps nothing open.
  const bool used = std::any_of(fabric_.ports.begin(), fabric_.ports.end(),
                                [&](const Port& p) { return p.context == d.context; });
  if (!used) {
    fabric_.pds.pop_back();
    fabric_.contexts.pop_back();
  } else {
    TP_INFO(net, "%s: work requests hold their data themselves where these are short: %s (%s)",
            d.name.c_str(), d.inline_use.allowed ? "yes" : "no", d.inline_use.why.c_str());
  }
}

bool PortFinder::open(ibv_device* device, Device& d) {
  const Verbs& v = fabric_.verbs;
  const auto failed = [&](VerbsCall call, const char* what, int error) {
    left_out_.push_back(d.name + ": " + what + ": " + error_text(error));
    TP_WARN("%s is left out: %s failed: %s%s", d.name.c_str(), what, error_text(error).c_str(),
            remedy_of(call, error).c_str());
    return false;
  };
  errno = 0;
  auto context = own(v.open_device(device), v.close_device);
  if (!context) return failed(VerbsCall::open, "opening the device", errno);
  if (const int rc = v.query_device(context.get(), &d.attr))
    return failed(VerbsCall::open, "ibv_query_device", rc);
  errno = 0;
  auto pd = own(v.alloc_pd(context.get()), v.dealloc_pd);
  if (!pd) return failed(VerbsCall::alloc_pd, "ibv_alloc_pd", errno);

  d.guid = be64toh(v.get_device_guid(device));
  if (d.guid == 0) d.guid = guid_from_name(d.name);
  d.pci_path = fabric_.kind == FabricKind::soft
                   ? std::string(device->ibdev_path)
                   : real_path(sysfs_ + "/class/infiniband/" + d.name + "/device");
  if (fabric_.kind == FabricKind::verbs && !d.pci_path.empty())
    d.physical_function = real_path(d.pci_path + "/physfn");
  d.inline_use = find_inline_use(d);
  d.dmabuf = probe_dmabuf(pd.get());
  d.context = context.get();
  d.pd = pd.get();
  d.data_direct = find_data_direct(d, device);
  fabric_.contexts.push_back(std::move(context));
  fabric_.pds.push_back(std::move(pd));
  return true;
}

InlineUse PortFinder::find_inline_use(const Device& d) const {
  std::string driver;
  if (fabric_.kind == FabricKind::verbs && !d.pci_path.empty())
    driver = real_path(d.pci_path + "/driver");
  driver.erase(0, driver.rfind('/') + 1);
  return inline_use(provider_of({driver, d.attr.vendor_id, d.name}), config_.ib_use_inline);
}

// A device that can take a dma-buf looks at the file descriptor and finds it bad; one that cannot
// refuses the operation first.
bool PortFinder::probe_dmabuf(ibv_pd* pd) const {
  if (fabric_.verbs.reg_dmabuf_mr == nullptr) return false;
  errno = 0;
  ibv_mr* mr = fabric_.verbs.reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0);
  const int error = errno;
  if (mr != nullptr) {
    (void)fabric_.verbs.dereg_mr(mr);
    return false;
  }
  return error == EBADF;
}

std::string PortFinder::find_data_direct(const Device& device, ibv_device* of) const {
  if (mlx5_ == nullptr || mlx5_->get_data_direct_sysfs_path == nullptr ||
      mlx5_->reg_dmabuf_mr == nullptr || config_.ib_data_direct == 0 || !mlx5_->is_supported(of))
    return {};
  std::array<char, PATH_MAX> path{};
  if (mlx5_->get_data_direct_sysfs_path(device.context, path.data(), path.size()) != 0) return {};
  const std::string found = sysfs_ + path.data();
  errno = 0;
  ibv_mr* mr = mlx5_->reg_dmabuf_mr(device.pd, 0, 4096, 0, -1, 0, kDataDirect);
  const int error = errno;
  if (mr != nullptr) (void)fabric_.verbs.dereg_mr(mr);
  if (mr == nullptr && error == EBADF) return found;
  TP_WARN("the data-direct function %s of %s is not used: it takes no dma-buf: %s (errno %d)",
          found.c_str(), device.name.c_str(), error_text(error).c_str(), error);
  return {};
}

bool PortFinder::peer_memory(const std::string& device) const {
  if (fabric_.kind == FabricKind::soft)
    return config_.soft_cuda != SoftCuda::off && soft_peermem(config_.soft_hcas, device);
  return exists(sysfs_ + "/kernel/mm/memory_peers/nv_mem/version") ||
         exists(sysfs_ + "/kernel/mm/memory_peers/nv_mem_nc/version") ||
         exists(sysfs_ + "/module/nvidia_peermem/version");
}

// By the library, by the kernel, and by the code of old, in which NDR stands for what is faster.
int PortFinder::find_speed(const Device& device, std::uint8_t number,
                           const ibv_port_attr& attr) const {
  const auto& ask = fabric_.verbs.port_speed;
  int speed = ask != nullptr ? ask(device.context, number) : 0;
  if (speed <= 0 && fabric_.kind == FabricKind::verbs)
    speed = rate_from_text(read_line(sysfs_ + "/class/infiniband/" + device.name + "/ports/" +
                                     std::to_string(number) + "/rate"));
  if (speed <= 0) speed = port_speed_mbps(attr.active_speed, attr.active_width);
  return speed > 0 ? speed : kUnknownSpeedMbps;
}

void PortFinder::look_at_port(Device& device, std::uint8_t number) {
  const std::string where = device.name + ":" + std::to_string(number);
  const bool asked_for = !filter_.empty() && !filter_.excludes();
  ibv_port_attr attr{};
  if (const int rc = fabric_.verbs.query_port(device.context, number, &attr)) {
    leave_out(where, "ibv_query_port: " + error_text(rc), asked_for);
    return;
  }
  if (attr.state != IBV_PORT_ACTIVE) {
    leave_out(where,
              std::string("its state is ") + port_state_text(attr.state) +
                  ", not ACTIVE; check cable, switch port and subnet manager",
              asked_for);
    return;
  }
  if (fabric_.ports.size() >= static_cast<std::size_t>(kMaxPorts)) {
    TP_WARN(
        "%s is left out: %d ports are in use already, the most that is supported; choose "
        "ports with NCCL_IB_HCA",
        where.c_str(), kMaxPorts);
    return;
  }
  Port port;
  port.device = device.name;
  port.number = number;
  port.pci_path = device.pci_path;
  port.physical_function = device.physical_function;
  port.guid = device.guid;
  port.speed_mbps = find_speed(device, number, attr);
  port.place = filter_.place(device.name, number);
  port.roce = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  port.active_mtu = attr.active_mtu;
  port.lid = attr.lid;
  port.max_message_bytes = attr.max_msg_sz != 0 ? attr.max_msg_sz : 1u << 30;
  port.max_qp = device.attr.max_qp;
  port.dmabuf = device.dmabuf;
  port.peermem = peer_memory(device.name);
  port.inline_data = device.inline_use.allowed;
  port.context = device.context;
  port.pd = device.pd;
  port.gids = read_gids(fabric_, port, attr.gid_tbl_len, sysfs_);
  if (!device.data_direct.empty()) {
    fabric_.verbs.reg_data_direct = mlx5_->reg_dmabuf_mr;
    if (config_.ib_data_direct == 2 &&
        fabric_.ports.size() + 1 < static_cast<std::size_t>(kMaxPorts))
      fabric_.ports.push_back(port);
    port.data_direct = device.data_direct;
  }
  fabric_.ports.push_back(std::move(port));
}

void PortFinder::order_and_name() {
  std::vector<Port>& ports = fabric_.ports;
  // PCI addresses have fixed width, so text order is numeric order.  Devices without one keep
  // their place behind the others.
  std::stable_sort(ports.begin(), ports.end(), [](const Port& a, const Port& b) {
    const std::string_view x = pci_address(a.pci_path), y = pci_address(b.pci_path);
    if (x.empty() || y.empty()) return !x.empty() && y.empty();
    return x < y;
  });
  for (Port& port : ports) {
    const bool several = std::any_of(ports.begin(), ports.end(), [&](const Port& p) {
      return p.device == port.device && p.number != port.number;
    });
    port.name = port.device + (port.data_direct.empty() ? "" : "_dma");
    if (several) port.name += ":" + std::to_string(port.number);
    TP_INFO(net,
            "%s: %s port %d, %s, %d Mb/s, MTU %d, %zu GIDs, GPU memory by peermem %s, dma-buf %s, "
            "%s%s%s",
            port.name.c_str(), fabric_.kind == FabricKind::soft ? "soft HCA" : "adapter",
            int{port.number}, port.roce ? "RoCE" : "InfiniBand", port.speed_mbps,
            128 << static_cast<int>(port.active_mtu), port.gids.size(), port.peermem ? "yes" : "no",
            port.dmabuf ? "yes" : "no",
            port.pci_path.empty() ? "no PCI path" : port.pci_path.c_str(),
            port.data_direct.empty() ? "" : ", data-direct function ", port.data_direct.c_str());
  }
}

void PortFinder::report_unknown_names() const {
  const std::vector<std::string> unknown = filter_.unmatched(present_);
  if (unknown.empty()) return;
  std::string names, existing;
  for (const std::string& n : unknown) names += (names.empty() ? "" : ", ") + n;
  for (const auto& [device, port] : present_) {
    existing += (existing.empty() ? "" : ", ") + device + ":" + std::to_string(port);
  }
  TP_WARN("NCCL_IB_HCA=%s names %s, which this machine does not have; present: %s",
          config_.ib_hca.c_str(), names.c_str(), existing.empty() ? "none" : existing.c_str());
}

// libibverbs gives an empty list for whatever it could not read, too.
std::string PortFinder::nothing_found() const {
  const std::string nothing = "no device found";
  if (fabric_.kind == FabricKind::soft) return nothing;
  const std::string folder = sysfs_ + "/class/infiniband";
  const auto unread = [&](int error) {
    const bool known = is_refusal(error) || error == EMFILE || error == ENFILE || error == ENOMEM;
    return nothing + ", as " + folder +
           " cannot be read: " + (known ? why_no_memory(error) : error_text(error));
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir(folder.c_str()), &::closedir);
  if (all == nullptr) return errno == ENOENT ? nothing : unread(errno);
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(all.get());
    if (entry == nullptr) return errno == 0 ? nothing : unread(errno);
    if (entry->d_name[0] == '.') continue;
    return nothing + " by libibverbs, though the kernel has " + entry->d_name +
           ": it lacks descriptors (ulimit -n), calls that a security profile (seccomp) refuses, "
           "/dev/infiniband/uverbs* with ib_uverbs, or the adapter's provider (rdma-core)";
  }
}

std::string PortFinder::why_none() const {
  if (left_out_.empty()) return nothing_found();
  std::string out;
  for (const std::string& reason : left_out_) out += (out.empty() ? "" : "; ") + reason;
  return out;
}

}  // namespace

std::vector<GidEntry> read_gids(const Fabric& fabric, const Port& port, int count,
                                const std::string& sysfs) {
  std::vector<GidEntry> out;
  const std::string types = sysfs + "/class/infiniband/" + port.device + "/ports/" +
                            std::to_string(port.number) + "/gid_attrs/types/";
  for (int i = 0; i < count; ++i) {
    GidEntry entry;
    entry.index = i;
    if (fabric.verbs.query_gid(port.context, port.number, i, &entry.gid) != 0) continue;
    if (is_zero(entry.gid)) continue;  // most of a table of 1024 is
    if (port.roce) {
      entry.roce_version = fabric.kind == FabricKind::soft
                               ? soft_gid_version(fabric, port, i)
                               : roce_version_from_text(read_line(types + std::to_string(i)));
    }
    out.push_back(entry);
  }
  return out;
}

Status find_ports(Fabric& fabric, const Config& config, const std::string& sysfs,
                  std::string& why_none, const Mlx5* mlx5) {
  std::string why;
  std::optional<HcaFilter> filter = HcaFilter::parse(config.ib_hca, why);
  if (!filter) {
    TP_WARN(
        "NCCL_IB_HCA=%s cannot be read: %s; use "
        "[^][=]name[:port[:rail[:plane]]],...",
        config.ib_hca.c_str(), why.c_str());
    return Status::bad_argument;
  }
  PortFinder finder(fabric, config, sysfs, *std::move(filter), mlx5);
  finder.run();
  if (fabric.ports.empty()) why_none = finder.why_none();
  return Status::ok;
}

}  // namespace twinpath
