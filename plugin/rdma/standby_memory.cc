// Ports in reserve (proxy/wire/paths.h), and memory registered on them: as a rule when one is first
// needed, since a registration may be of many gigabytes, and pins entries of the adapter's tables.
#include <algorithm>

#include "plugin/base/log.h"
#include "plugin/rdma/devices.h"
#include "plugin/rdma/staging.h"

namespace twinpath {

// Every registration asks; a device's ports never change.
std::vector<RailPort> Devices::standby(int index) const {
  {
    const std::lock_guard hold(mutex_);
    if (const auto known = standby_.find(index); known != standby_.end()) return known->second;
  }
  std::vector<RailPort> out;
  const std::vector<RailPort> own = rails(index);
  const auto most = std::min(
      {static_cast<std::size_t>(config_.failover ? config_.standby_ports : 0),
       static_cast<std::size_t>(kMaxStandby), static_cast<std::size_t>(kMaxRails) - own.size()});
  if (own.empty() || most == 0) return out;
  std::vector<const Port*> others;
  std::vector<const RailPort*> rails;
  for (const RailPort& rail : ports_) {
    if (rail.port->roce != own.front().port->roce ||
        std::any_of(own.begin(), own.end(), [&](const RailPort& o) {
          return o.adapter == rail.adapter && o.port->number == rail.port->number;
        }))
      continue;
    others.push_back(rail.port);
    rails.push_back(&rail);
  }
  for (const int i : placement_->in_reserve(*own.front().port, others)) {
    if (out.size() == most) break;
    out.push_back(*rails[static_cast<std::size_t>(i)]);
  }
  const std::lock_guard hold(mutex_);
  return standby_[index] = std::move(out);
}

// Of most memory a key on a standby rail is got when it is needed.  Not of what the driver would
// have to be asked for then: that may wait for what itself waits for a message
// (plugin/gpu/engine.h), and so must not be done in the middle of a transfer.  The software HCA
// asks it about any GPU memory; elsewhere it makes dma-bufs, whose descriptor is the caller's.  To
// keep one for each registration would use up the limit of open files: NCCL makes two a connection.
bool Devices::needs_keys_early(MrKind kind) const {
  return kind == MrKind::dmabuf || (kind == MrKind::cuda && fabric_->kind == FabricKind::soft);
}

void Devices::acquire_early(ProxyMemory& memory, MrRequest request, const RailPort& port,
                            std::size_t rail) {
  request.quiet = true;
  if (acquire(memory, request, port, rail) == Status::ok) return;
  TP_INFO(net, "%s, in reserve, takes no GPU memory at 0x%llx: it cannot serve its messages",
          port.port->name.c_str(), static_cast<unsigned long long>(memory.address));
}

Status Devices::acquire_standby(ProxyMemory& memory, const RailPort& port, std::size_t rail,
                                bool quiet) {
  if (memory.mirror != nullptr && memory.mirror->memory.keys_[rail].region == nullptr)
    TP_TRY(acquire(memory.mirror->memory, {.quiet = quiet}, port, rail));
  if (!memory.direct || memory.keys_[rail].region != nullptr) return Status::ok;
  const MrRegion& first = *memory.keys_[0].region;
  if (needs_keys_early(first.kind)) return Status::system;  // it was tried
  MrRequest request;
  request.quiet = quiet;
  request.kind = first.kind;
  return acquire(memory, request, port, rail);
}

bool Devices::stand_by(int device, int rail) {
  const int n = rail - static_cast<int>(rails(device).size());
  const std::vector<RailPort> more = standby(device);
  if (n < 0 || static_cast<std::size_t>(n) >= more.size()) return true;
  std::lock_guard hold(memory_mutex_);
  StandingBy& state = standing_by_[device];
  state.used |= 1u << n;
  bool room = true;
  for (auto& [key, memory] : memories_) {
    if (memory->device != device) continue;
    // One failure is enough to read: there may be many, and many tries.
    const bool quiet = (state.told >> n & 1) != 0;
    const Status s = acquire_standby(*memory, more[static_cast<std::size_t>(n)],
                                     static_cast<std::size_t>(rail), quiet);
    if (s != Status::ok) state.told |= 1u << n;
    room = room && s != Status::no_memory;
  }
  return room;
}

std::optional<KeyRange> Devices::key_range(const Memory* memory, std::uint64_t address,
                                           std::uint64_t bytes, int rails,
                                           std::optional<int> only) const {
  std::lock_guard hold(memory_mutex_);
  const auto at = memories_.find(const_cast<Memory*>(memory));
  if (at == memories_.end()) return std::nullopt;
  const ProxyMemory* const mirror =
      at->second->mirror != nullptr ? &at->second->mirror->memory : nullptr;
  for (const ProxyMemory* part : {static_cast<const ProxyMemory*>(at->second.get()), mirror}) {
    if (part == nullptr || (part != mirror && !part->direct)) continue;
    KeyRange range{part->address, part->length, {}};
    if (!range.covers(address, bytes)) continue;
    for (int i = 0; i < rails; ++i)
      range.rkeys[static_cast<std::size_t>(i)] = part->rkey(only.value_or(i));
    return range;
  }
  return std::nullopt;
}

}  // namespace twinpath
