#pragma once
// One face for the seven tables: what a test says once is called through each version's own
// members with that version's own types, as NCCL would.
//
// Threads: as the table behind it; the adapter has no state besides the table's address.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "plugin/nccl/abi/net.h"

namespace twinpath::test {

using Handle = std::array<std::uint8_t, abi::kHandleMaxSize>;

// The widest view of the properties; `has_*` says what the version knows.
struct AnyProps {
  std::string name, pci_path;
  const char* name_pointer = nullptr;
  std::uint64_t guid = 0;
  int ptr_support = 0, speed = 0, port = 0, max_comms = 0, max_recvs = 0;
  float latency = 0;
  int device_type = 0, device_version = 0;
  int reg_is_global = 1, force_flush = 0;
  int ndevs = 1, first_dev = -1;
  std::size_t max_p2p = 1, max_coll = 1;
  int max_multi = 1;
  int rail = -1, plane = -1;
};

// Asks a table of NET or GIN, whose properties are those of NET's version kV.
template <class Properties, int kV>
abi::ncclResult_t read_properties(abi::ncclResult_t (*get)(int, Properties*), int dev,
                                  AnyProps& out) {
  Properties p;
  std::memset(&p, 0xA5, sizeof p);  // NCCL does not clear it either
  if (const abi::ncclResult_t r = get(dev, &p); r != abi::ncclSuccess) return r;
  out.name_pointer = p.name;
  out.name = p.name;
  out.pci_path = p.pciPath == nullptr ? "" : p.pciPath;
  out.guid = p.guid;
  out.ptr_support = p.ptrSupport;
  out.speed = p.speed;
  out.port = p.port;
  out.latency = p.latency;
  out.max_comms = p.maxComms;
  out.max_recvs = p.maxRecvs;
  out.first_dev = dev;
  if constexpr (kV >= 7) {
    out.device_type = p.netDeviceType;
    out.device_version = p.netDeviceVersion;
  }
  if constexpr (kV >= 8) out.reg_is_global = p.regIsGlobal;
  if constexpr (kV >= 9) {
    out.force_flush = p.forceFlush;
    out.ndevs = p.vProps.ndevs;
    out.first_dev = p.vProps.devs[0];
    out.max_p2p = p.maxP2pBytes;
    out.max_coll = p.maxCollBytes;
  }
  if constexpr (kV >= 11) out.max_multi = p.maxMultiRequestSize;
  if constexpr (kV >= 12) {
    out.rail = p.railId;
    out.plane = p.planeId;
  }
  return abi::ncclSuccess;
}

class AnyNet {
 public:
  virtual ~AnyNet() = default;
  virtual int version() const = 0;
  virtual const char* name() const = 0;
  bool has_context() const { return version() >= 11; }
  // `traffic_class` is passed where the version can (v11 in init, v10 in connect); kNoConfig
  // passes a null config.
  static constexpr int kNoConfig = -1000;
  virtual abi::ncclResult_t init(void** ctx, LogSink log, int traffic_class) = 0;
  virtual abi::ncclResult_t devices(int* n) = 0;
  virtual abi::ncclResult_t properties(int dev, AnyProps& out) = 0;
  virtual abi::ncclResult_t listen(void* ctx, int dev, void* handle, void** comm) = 0;
  virtual abi::ncclResult_t connect(void* ctx, int dev, void* handle, void** comm,
                                    int traffic_class) = 0;
  virtual abi::ncclResult_t accept(void* listener, void** comm) = 0;
  virtual abi::ncclResult_t reg(void* comm, void* data, std::size_t size, int type, void** mh) = 0;
  virtual abi::ncclResult_t dereg(void* comm, void* mh) = 0;
  virtual abi::ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mh,
                                  void** request) = 0;
  virtual abi::ncclResult_t irecv(void* comm, int n, void** data, const std::size_t* sizes,
                                  int* tags, void** mhs, void** request) = 0;
  virtual abi::ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** mhs,
                                   void** request) = 0;
  virtual abi::ncclResult_t test(void* request, int* done, int* sizes) = 0;
  virtual abi::ncclResult_t close_send(void* comm) = 0;
  virtual abi::ncclResult_t close_recv(void* comm) = 0;
  virtual abi::ncclResult_t close_listen(void* comm) = 0;
  // ncclSuccess without doing anything where the version has no finalize.
  virtual abi::ncclResult_t finalize(void* ctx) = 0;
  virtual bool has_make_vdevice() const = 0;
  virtual abi::ncclResult_t make_vdevice(int* dev, const std::vector<int>& members) = 0;
  virtual abi::ncclResult_t set_net_attr(void* ctx, abi::ncclNetAttr_t* attr) = 0;
  // getDeviceMr and irecvConsumed, where they exist.
  virtual bool gpu_driven_members_are_null() const = 0;

  // What init, and each isend (the first) and irecv pass on where the version can.
  abi::ncclProfilerCallback_t events = nullptr;
  std::vector<void*> handles;
};

template <class Net>
class NetAdapter final : public AnyNet {
 public:
  explicit NetAdapter(const Net* table) : t_(*table) {}
  static constexpr int kV = Net::kVersion;
  using R = abi::ncclResult_t;
  using Size = std::conditional_t<(kV >= 9), std::size_t, int>;

  int version() const override { return kV; }
  const char* name() const override { return t_.name; }

  R init(void** ctx, LogSink log, int traffic_class) override {
    abi::ncclNetCommConfig_t config{traffic_class};
    auto* c = traffic_class == kNoConfig ? nullptr : &config;
    if constexpr (kV >= 11) {
      return t_.init(ctx, 0x1234, c, log, events);
    } else if constexpr (kV == 10) {
      return t_.init(log, events);
    } else {
      return t_.init(log);
    }
  }
  R devices(int* n) override { return t_.devices(n); }

  R properties(int dev, AnyProps& out) override {
    return read_properties<typename Net::Properties, kV>(t_.getProperties, dev, out);
  }

  R listen([[maybe_unused]] void* ctx, int dev, void* handle, void** comm) override {
    if constexpr (kV >= 11) {
      return t_.listen(ctx, dev, handle, comm);
    } else {
      return t_.listen(dev, handle, comm);
    }
  }
  R connect([[maybe_unused]] void* ctx, int dev, void* handle, void** comm,
            [[maybe_unused]] int traffic_class) override {
    abi::ncclNetDeviceHandle_t* device_handle = nullptr;
    if constexpr (kV >= 11) {
      return t_.connect(ctx, dev, handle, comm, &device_handle);
    } else if constexpr (kV == 10) {
      abi::ncclNetCommConfig_t config{traffic_class};
      auto* c = traffic_class == kNoConfig ? nullptr : &config;
      return t_.connect(dev, c, handle, comm, &device_handle);
    } else if constexpr (kV >= 7) {
      return t_.connect(dev, handle, comm, &device_handle);
    } else {
      return t_.connect(dev, handle, comm);
    }
  }
  R accept(void* listener, void** comm) override {
    if constexpr (kV >= 7) {
      abi::ncclNetDeviceHandle_t* device_handle = nullptr;
      return t_.accept(listener, comm, &device_handle);
    } else {
      return t_.accept(listener, comm);
    }
  }
  R reg(void* comm, void* data, std::size_t size, int type, void** mh) override {
    if constexpr (kV >= 8) {
      return t_.regMr(comm, data, size, type, mh);
    } else {
      return t_.regMr(comm, data, static_cast<int>(size), type, mh);
    }
  }
  R dereg(void* comm, void* mh) override { return t_.deregMr(comm, mh); }
  R isend(void* comm, void* data, std::size_t size, int tag, void* mh, void** request) override {
    if constexpr (kV >= 10) {
      return t_.isend(comm, data, size, tag, mh, handles.empty() ? nullptr : handles[0], request);
    } else {
      return t_.isend(comm, data, static_cast<Size>(size), tag, mh, request);
    }
  }
  R irecv(void* comm, int n, void** data, const std::size_t* sizes, int* tags, void** mhs,
          void** request) override {
    std::array<Size, 16> own{};
    for (std::size_t i = 0; i < own.size() && static_cast<int>(i) < n; ++i) {
      own[i] = static_cast<Size>(sizes[i]);
    }
    if constexpr (kV >= 10) {
      return t_.irecv(comm, n, data, own.data(), tags, mhs,
                      handles.empty() ? nullptr : handles.data(), request);
    } else {
      return t_.irecv(comm, n, data, own.data(), tags, mhs, request);
    }
  }
  R iflush(void* comm, int n, void** data, int* sizes, void** mhs, void** request) override {
    return t_.iflush(comm, n, data, sizes, mhs, request);
  }
  R test(void* request, int* done, int* sizes) override { return t_.test(request, done, sizes); }
  R close_send(void* comm) override { return t_.closeSend(comm); }
  R close_recv(void* comm) override { return t_.closeRecv(comm); }
  R close_listen(void* comm) override { return t_.closeListen(comm); }
  R finalize([[maybe_unused]] void* ctx) override {
    if constexpr (kV >= 11) {
      return t_.finalize(ctx);
    } else {
      return abi::ncclSuccess;
    }
  }
  bool has_make_vdevice() const override {
    if constexpr (kV >= 9) return t_.makeVDevice != nullptr;
    return false;
  }
  R make_vdevice([[maybe_unused]] int* dev,
                 [[maybe_unused]] const std::vector<int>& members) override {
    if constexpr (kV >= 9) {
      using VProps = decltype(typename Net::Properties{}.vProps);
      VProps v;
      std::memset(&v, 0xA5, sizeof v);
      v.ndevs = static_cast<int>(members.size());
      for (std::size_t i = 0; i < members.size() && i < std::size(v.devs); ++i) {
        v.devs[i] = members[i];
      }
      return t_.makeVDevice(dev, &v);
    } else {
      return abi::ncclInvalidUsage;
    }
  }
  R set_net_attr([[maybe_unused]] void* ctx, [[maybe_unused]] abi::ncclNetAttr_t* attr) override {
    if constexpr (kV >= 11) {
      return t_.setNetAttr == nullptr ? abi::ncclInternalError : t_.setNetAttr(ctx, attr);
    } else {
      return abi::ncclSuccess;
    }
  }
  bool gpu_driven_members_are_null() const override {
    if constexpr (kV >= 7) return t_.getDeviceMr == nullptr && t_.irecvConsumed == nullptr;
    return true;
  }

 private:
  const Net& t_;
};

// All versions, by the address of each exported symbol; a missing symbol leaves its version out.
using SymbolLookup = std::function<const void*(const char*)>;

template <class Net>
void add_version(std::vector<std::unique_ptr<AnyNet>>& out, const SymbolLookup& lookup) {
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(Net::kVersion);
  if (const void* table = lookup(symbol.c_str())) {
    out.push_back(std::make_unique<NetAdapter<Net>>(static_cast<const Net*>(table)));
  }
}

inline std::vector<std::unique_ptr<AnyNet>> all_versions(const SymbolLookup& lookup) {
  std::vector<std::unique_ptr<AnyNet>> out;
  add_version<abi::ncclNet_v6_t>(out, lookup);
  add_version<abi::ncclNet_v7_t>(out, lookup);
  add_version<abi::ncclNet_v8_t>(out, lookup);
  add_version<abi::ncclNet_v9_t>(out, lookup);
  add_version<abi::ncclNet_v10_t>(out, lookup);
  add_version<abi::ncclNet_v11_t>(out, lookup);
  add_version<abi::ncclNet_v12_t>(out, lookup);
  return out;
}

}  // namespace twinpath::test
