#include "plugin/rdma/devices.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/engine.h"
#include "plugin/rdma/shown_place.h"
#include "plugin/rdma/staging.h"

namespace twinpath {
namespace {

// NCCL cuts at 1 GiB itself and reports sizes as int; a message is cut no finer than a queue's
// limit allows.
constexpr std::size_t kMostMessageBytes = std::size_t{1} << 30;

DeviceProps port_properties(const Fabric& fabric, const Config& config, int index) {
  const Port& port = fabric.ports[static_cast<std::size_t>(index)];
  const ShownPlace place =
      shown_place(fabric.ports, static_cast<std::size_t>(index), config.ib_merge_vfs);
  DeviceProps p;
  p.name = port.name;
  p.pci_path = place.pci_path;
  p.guid = port.guid;
  p.gpu_direct = port.peermem;
  p.dmabuf = port.dmabuf && fabric.verbs.reg_dmabuf_mr != nullptr;
  p.global_memory = !config.ib_subnet_aware;
  p.speed_mbps = port.speed_mbps;
  p.port = place.port;
  // What reaches the GPU by another function may be later than a completion.
  p.force_flush = !port.data_direct.empty();
  p.rail_id = port.place.rail;
  p.plane_id = port.place.plane;
  p.max_comms = port.max_qp > 0 ? std::min(port.max_qp, 65536) : 65536;
  p.max_message_bytes = port.max_message_bytes == 0
                            ? kMostMessageBytes
                            : static_cast<std::size_t>(std::min<std::uint64_t>(
                                  port.max_message_bytes, kMostMessageBytes));
  p.members = {index};
  return p;
}

}  // namespace

Devices::Devices(std::unique_ptr<Fabric> fabric, const Config& config,
                 std::optional<PlacementSource> placement, std::shared_ptr<CounterPage> counters)
    : fabric_(std::move(fabric)),
      config_(config),
      counters_(std::move(counters)),
      placement_(std::make_unique<Placement>(
          placement ? std::move(*placement) : live_placement(config, *fabric_), config)),
      live_(*fabric_) {
  for (const Port& port : fabric_->ports) {
    Adapter* adapter = nullptr;
    for (auto& a : adapters_)
      if (a->context == port.context) adapter = a.get();
    if (adapter == nullptr) {
      adapters_.push_back(
          std::make_unique<Adapter>(fabric_->verbs, port.context, port.pd, port.device));
      adapter = adapters_.back().get();
      if (counters_ != nullptr) adapter->mrs.count_into(&counters_->memory());
    }
    if (counters_ != nullptr)
      if (auto* counts = counters_->add_port(port.name, port.device, port.number, port.speed_mbps))
        adapter->events.count_into(port.number, counts);
    const int index = static_cast<int>(ports_.size());
    ports_.push_back({&port, adapter});
    DeviceProps p = port_properties(*fabric_, config_, index);
    // Two ports of one HCA share its node GUID, but NCCL wants one GUID per device.
    while (std::any_of(devices_.begin(), devices_.end(),
                       [&](const DeviceProps& d) { return d.guid == p.guid; }))
      p.guid = mix_guid(p.guid, port.number);
    planes_.note(p.plane_id);
    devices_.push_back(std::move(p));
  }
}

Devices::~Devices() {
  for (auto& [key, memory] : memories_) release(*memory);
}

std::size_t Devices::count() const {
  std::lock_guard hold(mutex_);
  return devices_.size();
}

Result<DeviceProps> Devices::properties(int index) const {
  const std::vector<const Port*> ports = ports_of(index);
  if (ports.empty()) return Status::bad_argument;
  const std::string refusal = placement_->refusal(ports);
  // The software HCA's copies need a process that may have to be started; not under the lock.
  std::string no_copies;
  const bool can_copy = fabric_->kind != FabricKind::soft || gpu::cuda::driver() == nullptr ||
                        gpu::copies_ready(no_copies) == Status::ok;
  std::lock_guard hold(mutex_);
  DeviceProps p = devices_[static_cast<std::size_t>(index)];
  // Asked each time: the program may load the driver later.  NCCL does so before it asks us.
  if ((p.gpu_direct || p.dmabuf) && gpu::cuda::driver() == nullptr) {
    p.gpu_direct = p.dmabuf = false;
    const std::string why = gpu::cuda_notes();
    if (refusals_.insert(why).second) TP_INFO(net, "GPU memory is not offered: %s", why.c_str());
  }
  if (!can_copy && (p.gpu_direct || p.dmabuf)) {
    p.gpu_direct = p.dmabuf = false;
    if (refusals_.insert(no_copies).second)
      TP_WARN(
          "%s is offered for host memory only: %s; make twinpath-copier available beside the "
          "plugin (TWINPATH_COPIER), or copy within the program (TWINPATH_SOFT_CUDA=inprocess)",
          p.name.c_str(), no_copies.c_str());
  }
  if (!refusal.empty() && (p.gpu_direct || p.dmabuf)) {
    p.gpu_direct = p.dmabuf = false;
    if (refusals_.insert(refusal).second)
      TP_WARN("%s is offered without GPUDirect RDMA: %s", p.name.c_str(), refusal.c_str());
  }
  return p;
}

std::vector<const Port*> Devices::ports_of(int index) const {
  std::vector<const Port*> out;
  for (const RailPort& rail : rails(index)) out.push_back(rail.port);
  return out;
}

Placement::End Devices::placement(int index) const { return placement_->end(ports_of(index)); }

std::vector<int> Devices::nearest_rails(int index) const {
  return placement_->nearest(ports_of(index));
}

Result<int> Devices::merge(std::span<const int> members) {
  if (members.empty() || members.size() > static_cast<std::size_t>(kMaxRails)) {
    TP_WARN("a device cannot be merged from %zu others, 1 to %d are possible", members.size(),
            kMaxRails);
    return Status::bad_argument;
  }
  std::lock_guard hold(mutex_);
  std::vector<DeviceProps> parts;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int m = members[i];
    if (m < 0 || static_cast<std::size_t>(m) >= ports_.size() ||
        std::find(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(i), m) !=
            members.begin() + static_cast<std::ptrdiff_t>(i)) {
      TP_WARN("device %d cannot be merged: it is not one of the %zu ports, or named twice", m,
              ports_.size());
      return Status::bad_argument;
    }
    const DeviceProps& part = devices_[static_cast<std::size_t>(m)];
    if (!parts.empty() && fabric_->ports[static_cast<std::size_t>(m)].roce !=
                              fabric_->ports[static_cast<std::size_t>(members[0])].roce) {
      TP_WARN("%s and %s cannot be merged: one is InfiniBand, the other Ethernet",
              parts[0].name.c_str(), part.name.c_str());
      return Status::bad_argument;
    }
    parts.push_back(part);
  }
  if (devices_.size() >= static_cast<std::size_t>(kMaxDevices)) {
    TP_WARN("there are %zu devices already, no more can be merged", devices_.size());
    return Status::bad_argument;
  }
  DeviceProps p = merge_properties(parts, planes_);
  while (std::any_of(devices_.begin(), devices_.end(),
                     [&](const DeviceProps& d) { return d.guid == p.guid; }))
    p.guid = mix_guid(p.guid, devices_.size());
  TP_INFO(net, "device %zu is %s, %d Mb/s, rail %d, plane %d", devices_.size(), p.name.c_str(),
          p.speed_mbps, p.rail_id, p.plane_id);
  devices_.push_back(std::move(p));
  return static_cast<int>(devices_.size()) - 1;
}

std::vector<RailPort> Devices::rails(int index) const {
  std::lock_guard hold(mutex_);
  std::vector<RailPort> out;
  if (index < 0 || static_cast<std::size_t>(index) >= devices_.size()) return out;
  for (int m : devices_[static_cast<std::size_t>(index)].members)
    out.push_back(ports_[static_cast<std::size_t>(m)]);
  return out;
}

int Devices::index_of(const RailPort& rail) const {
  return static_cast<int>(rail.port - fabric_->ports.data());
}

std::optional<bool> Devices::port_active(const RailPort& rail) const {
  ibv_port_attr attr{};
  if (verbs().query_port(rail.port->context, rail.port->number, &attr) != 0) return std::nullopt;
  return attr.state == IBV_PORT_ACTIVE;
}

std::string Devices::absence_text(const RailPort& rail) const {
  ibv_port_attr attr{};
  const int error = verbs().query_port(rail.port->context, rail.port->number, &attr);
  if (error == 0) return {};
  return "the local device " + rail.port->device + " does not answer any more (" +
         std::generic_category().message(error) +
         "): it failed, or was reset, unplugged or taken away; see the kernel log (dmesg)";
}

Result<LivePort> Devices::live(const RailPort& rail, std::string& why) const {
  rail.adapter->events.poll();
  if (rail.adapter->events.device_failed()) {
    why =
        rail.port->device +
        " has failed, and serves this process no more: connections over it and another adapter go "
        "on, new ones need the processes to be started anew; see the kernel log (dmesg)";
    return Status::system;
  }
  return live_.look(*rail.port, rail.adapter->events.address_changes(), config_, why);
}

Result<Memory*> Devices::register_memory(int device, void* data, std::size_t bytes, MemoryType type,
                                         std::uint64_t dmabuf_offset, int dmabuf_fd,
                                         Staging staging) {
  const std::vector<RailPort> ports = rails(device), more = standby(device);
  if (data == nullptr || bytes == 0 || ports.empty() ||
      reinterpret_cast<std::uintptr_t>(data) + bytes < bytes) {
    TP_WARN("cannot register %zu bytes at %p: not a range of memory", bytes, data);
    return Status::bad_argument;
  }
  auto memory = std::make_unique<ProxyMemory>();
  memory->address = reinterpret_cast<std::uintptr_t>(data);
  memory->length = bytes;
  memory->type = type;
  memory->device = device;
  if (type == MemoryType::host) staging = Staging::never;
  memory->direct = staging != Staging::always;
  Status s = Status::ok;
  if (memory->direct) {
    MrRequest request;
    request.kind = kind_of(type, dmabuf_fd);
    request.dmabuf_offset = dmabuf_offset;
    request.dmabuf_fd = dmabuf_fd;
    s = acquire(*memory, ports, request);
    if (s == Status::ok && needs_keys_early(request.kind))
      for (std::size_t n = 0; n < more.size(); ++n)
        acquire_early(*memory, request, more[n], ports.size() + n);
  }
  if (s == Status::ok && staging != Staging::never) {
    auto mirror = Mirror::make(memory->address, bytes);
    s = mirror.status();
    if (mirror) {
      memory->mirror = std::move(mirror).take();
      memory->mirror->memory.device = device;
      s = acquire(memory->mirror->memory, ports, {});
    }
  }
  if (s != Status::ok) {
    release(*memory);
    return s;
  }
  if (type == MemoryType::host && memory->direct) memory->plain_device_ = device;
  Memory* out = memory.get();
  std::lock_guard hold(memory_mutex_);
  ProxyMemory& kept = *memories_.emplace(out, std::move(memory)).first->second;
  const auto at = standing_by_.find(device);
  const std::uint32_t wanted = at != standing_by_.end() ? at->second.used : 0;
  for (std::size_t n = 0; n < more.size(); ++n)
    if ((wanted >> n & 1) != 0) (void)acquire_standby(kept, more[n], ports.size() + n, false);
  return out;
}

// The keys of memory's range on each port; the caller releases it also after a failure.
Status Devices::acquire(ProxyMemory& memory, const std::vector<RailPort>& ports,
                        const MrRequest& request) {
  for (std::size_t i = 0; i < ports.size(); ++i) TP_TRY(acquire(memory, request, ports[i], i));
  return Status::ok;
}

Status Devices::acquire(ProxyMemory& memory, MrRequest request, const RailPort& port,
                        std::size_t rail) {
  request.address = memory.address;
  request.bytes = memory.length;
  request.relaxed_ordering = config_.ib_pci_relaxed_ordering != 0;
  request.data_direct = !port.port->data_direct.empty();
  MrCache& cache = port.adapter->mrs;
  auto region = cache.acquire(request);
  if (!region) return region.status();
  memory.keys_[rail] = {(*region)->mr->lkey, (*region)->mr->rkey, *region, &cache};
  return Status::ok;
}

Status Devices::deregister_memory(Memory* memory) {
  std::unique_ptr<ProxyMemory> mine;
  {
    std::lock_guard hold(memory_mutex_);
    auto at = memories_.find(memory);
    if (at == memories_.end()) {
      TP_WARN("%p is no registration (given back twice?)", static_cast<void*>(memory));
      return Status::bad_argument;
    }
    mine = std::move(at->second);
    memories_.erase(at);
  }
  {
    // Whoever registered it need not be who uses it.  While its keys stand: what leaves needs them.
    std::lock_guard hold(users_mutex_);
    for (const User& u : users_)
      if (u.device == mine->device) u.user->give_up(*mine);
  }
  release(*mine);
  return Status::ok;
}

void Devices::attach(int device, MemoryUser& user) {
  std::lock_guard hold(users_mutex_);
  users_.push_back({device, &user});
}

void Devices::detach(const MemoryUser& user) {
  std::lock_guard hold(users_mutex_);
  std::erase_if(users_, [&user](const User& u) { return u.user == &user; });
}

bool Devices::registered(int device, const void* data, std::size_t bytes) const {
  std::lock_guard hold(memory_mutex_);
  return std::any_of(memories_.begin(), memories_.end(), [&](const auto& known) {
    return known.second->plainly_covers(data, bytes, device);
  });
}

void Devices::release(ProxyMemory& memory) {
  if (memory.mirror != nullptr) {
    if (memory.mirror->shut()) {
      release(memory.mirror->memory);
      memory.mirror->free();
    } else {
      (void)new std::shared_ptr<Mirror>(std::move(memory.mirror));  // a copy still refers to it
    }
  }
  for (ProxyMemory::Keys& k : memory.keys_) {
    if (k.region != nullptr) k.cache->release(k.region);
    k.region = nullptr;
  }
}

Result<std::vector<Rail>> choose_rails(const Devices& devices, int device) {
  std::vector<Rail> rails;
  for (const RailPort& port : devices.rails(device)) {
    std::string why;
    auto now = devices.live(port, why);
    if (!now) {
      TP_WARN("a port cannot be used: %s", why.c_str());
      return now.status();
    }
    rails.push_back(Rail::of(port, *now));
  }
  if (rails.empty()) {
    TP_WARN("there is no device %d", device);
    return Status::bad_argument;
  }
  return rails;
}

}  // namespace twinpath
