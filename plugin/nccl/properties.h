#pragma once
// What NCCL learns of a device, the same in every table: NET and GIN must agree on names, order
// and properties, or NCCL takes them for different adapters.
#include <algorithm>
#include <iterator>
#include <string>

#include "plugin/nccl/abi/properties.h"
#include "plugin/nccl/boundary.h"
#include "plugin/nccl/context.h"

namespace twinpath {

inline constexpr const char* kPluginName = "Twinpath";

// Who fills the device's queues: the host, or kernels that know a certain layout.
struct DeviceKind {
  abi::ncclNetDeviceType type;
  int version;
};

// NCCL keeps the strings and never writes to them, but declares them without const.
inline char* nccl_string(const std::string& s) {
  return s.empty() ? nullptr : const_cast<char*>(s.c_str());
}

template <class VProps>
Status fill_members(const DeviceProps& device, VProps& out) {
  if (device.members.empty() || device.members.size() > std::size(out.devs)) {
    TP_WARN("device %s is made of %zu ports; this version of NCCL knows 1 to %zu",
            device.name.c_str(), device.members.size(), std::size(out.devs));
    return Status::unsupported;
  }
  out.ndevs = static_cast<int>(device.members.size());
  std::copy(device.members.begin(), device.members.end(), out.devs);
  return Status::ok;
}

template <class Props>
Status fill_properties(int dev, Props* out, DeviceKind kind) {
  if (out == nullptr) return refuse("getProperties", "no place for the properties");
  *out = {};  // NCCL passes uninitialised memory
  Context* context = nullptr;
  TP_TRY(opened("getProperties", context));
  const auto found = context->device(dev);
  if (!found) return found.status();
  const DeviceProps& device = **found;
  out->name = nccl_string(device.name);
  out->pciPath = nccl_string(device.pci_path);
  out->guid = device.guid;
  out->ptrSupport = abi::kPtrHost | (device.gpu_direct ? abi::kPtrCuda : 0) |
                    (device.dmabuf ? abi::kPtrDmaBuf : 0);
  out->speed = device.speed_mbps;
  out->port = device.port;
  out->latency = device.latency_us;
  out->maxComms = device.max_comms;
  out->maxRecvs = device.max_recvs;
  if constexpr (requires { out->netDeviceType; }) {  // v7
    out->netDeviceType = kind.type;
    out->netDeviceVersion = kind.version;
  }
  if constexpr (requires { out->regIsGlobal; }) {  // v8
    out->regIsGlobal = device.global_memory ? 1 : 0;
  }
  if constexpr (requires { out->vProps; }) {  // v9
    out->forceFlush = device.force_flush ? 1 : 0;
    out->maxP2pBytes = std::min(device.max_message_bytes, abi::kMaxNetSizeBytes);
    out->maxCollBytes = out->maxP2pBytes;
    TP_TRY(fill_members(device, out->vProps));
  }
  if constexpr (requires { out->maxMultiRequestSize; }) out->maxMultiRequestSize = 1;  // v11
  if constexpr (requires { out->railId; }) {                                           // v12
    out->railId = static_cast<std::int16_t>(device.rail_id);
    out->planeId = static_cast<std::int16_t>(device.plane_id);
  }
  return Status::ok;
}

}  // namespace twinpath
