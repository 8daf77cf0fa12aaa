#pragma once
// NCCL's host side of GIN, call by call: what ncclGinConnectOnce, ncclGinRegister,
// ncclGinDevCommSetup and ncclGinFinalize do with a plugin.
//
// Failures are thrown (must.h): ranks run on threads.
#include <array>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/abi/gin_any.h"
#include "test/abi/must.h"

namespace twinpath::test {

// Bootstrap of a communicator.
class AllGather {
 public:
  virtual ~AllGather() = default;
  virtual int ranks() const = 0;
  // By rank; a Failure where a rank does not come.
  virtual std::vector<Handle> all_gather(int rank, const Handle& mine) = 0;
};

// That of ranks that are threads of one process, and a barrier.  A rank that fails drops out, so
// that the others do not wait for it here.
class Bootstrap : public AllGather {
 public:
  explicit Bootstrap(int ranks) : handles(static_cast<std::size_t>(ranks)), barrier_(ranks) {}
  void wait() { barrier_.arrive_and_wait(); }
  void leave() { barrier_.arrive_and_drop(); }
  int ranks() const override { return static_cast<int>(handles.size()); }
  std::vector<Handle> all_gather(int rank, const Handle& mine) override {
    handles[static_cast<std::size_t>(rank)] = mine;
    wait();
    std::vector<Handle> all = handles;
    wait();
    return all;
  }
  std::vector<Handle> handles;

 private:
  std::barrier<> barrier_;
};

// `body` on a thread per rank; what went wrong, by rank.
inline std::vector<std::string> on_ranks(int ranks,
                                         const std::function<void(int, Bootstrap&)>& body) {
  Bootstrap bootstrap(ranks);
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r, bootstrap);
      } catch (const std::exception& e) {
        failures[static_cast<std::size_t>(r)] = e.what();
      }
      bootstrap.leave();
    });
  }
  for (std::thread& t : threads) t.join();
  return failures;
}
inline std::vector<std::string> no_failures(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

struct Window {
  std::vector<void*> mhandles;         // a connection each
  std::vector<std::uint64_t> windows;  // what kernels get
};

// Memory as ncclMemAlloc gives it: whole pages.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        p_(static_cast<std::uint8_t*>(std::aligned_alloc(4096, bytes_))) {
    std::fill(p_, p_ + bytes_, std::uint8_t{0});
  }
  ~Pages() { std::free(p_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::uint8_t* data() const { return p_; }
  std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::uint8_t* p_;
};

// One rank's part of a communicator.
class GinRank {
 public:
  // v11: NCCL 2.28 asks for contexts while connecting, and gives connect the ctx of the first init
  // of the process (`first`), null for later communicators.
  GinRank(AnyGin& t, LogSink log, AllGather& boot, int rank, int connections, bool first,
          const abi::ncclGinConfig_v14_t& config)
      : t_(t), rank_(rank) {
    try {
      connect(log, boot, connections, first, config);
    } catch (...) {
      close();
      throw;
    }
  }
  ~GinRank() { close(); }
  GinRank(const GinRank&) = delete;
  GinRank& operator=(const GinRank&) = delete;

  int rank() const { return rank_; }
  std::size_t connections() const { return comms.size(); }

  Window reg(const Pages& pages, int type = abi::kPtrHost) {
    return reg(pages.data(), pages.size(), type);
  }
  Window reg(void* data, std::size_t bytes, int type = abi::kPtrHost) {
    Window w;
    for (void* comm : comms) {
      void* mhandle = nullptr;
      void* window = nullptr;
      must(t_.reg(comm, data, bytes, type, 0, &mhandle, &window), "regMrSym");
      must(mhandle != nullptr && window != nullptr, "handles of a window");
      w.mhandles.push_back(mhandle);
      w.windows.push_back(reinterpret_cast<std::uintptr_t>(window));
    }
    return w;
  }
  void dereg(const Window& w) {
    for (std::size_t n = 0; n < comms.size(); ++n)
      must(t_.dereg(comms[n], w.mhandles[n]), "deregMrSym");
  }

  // A device communicator (v14); v11 has made its only one.
  void create_contexts(const abi::ncclGinConfig_v14_t& config) {
    for (void* comm : comms) {
      void* ctx = nullptr;
      abi::ncclNetDeviceHandle_t* device = nullptr;
      must(t_.create_context(comm, config, &ctx, &device), "createContext");
      must(ctx != nullptr && device != nullptr && device->handle != nullptr, "a context's handles");
      must(device->netDeviceType == abi::kNetDeviceGinGdaki && device->needsProxyProgress == 0,
           "kind of a context");
      contexts.push_back(ctx);
      devices.push_back(reinterpret_cast<std::uintptr_t>(device->handle));
    }
  }
  void destroy_contexts() {
    for (void* ctx : contexts) (void)t_.destroy_context(ctx);
    contexts.clear();
    devices.clear();
  }
  bool failed() {
    for (void* ctx : contexts) {
      bool bad = false;
      must(t_.query_last_error(ctx, &bad), "queryLastError");
      if (bad) return true;
    }
    return false;
  }
  // ncclGinFinalize: waits for nobody.
  void close() {
    destroy_contexts();
    for (void* comm : comms) (void)t_.close_coll(comm);
    comms.clear();
    if (listener_ != nullptr) (void)t_.close_listen(listener_);
    listener_ = nullptr;
    if (comm_ctx_ != nullptr) (void)t_.finalize(comm_ctx_);
    if (instance_ != nullptr && instance_ != comm_ctx_) (void)t_.finalize(instance_);
    (void)t_.finalize(nullptr);  // as 2.28 does for later communicators
    comm_ctx_ = instance_ = nullptr;
  }

  std::vector<void*> comms, contexts;
  std::vector<std::uint64_t> devices;  // contexts as kernels see them

 private:
  void connect(LogSink log, AllGather& boot, int connections, bool first,
               const abi::ncclGinConfig_v14_t& config) {
    const bool v11 = t_.version() == 11;
    if (!v11 || first) must(t_.init(&comm_ctx_, 0x5eed, log), "init");
    if (v11) must(t_.init(&instance_, 0x5eed, log), "init of ConnectOnce");
    if (!v11) instance_ = comm_ctx_;
    int n = 0;
    must(t_.devices(&n), "devices");
    must(n > 0, "a GIN device");
    AnyProps props;
    must(t_.properties(0, props), "getProperties");
    must(props.device_type == 3, "type GDAKI");
    const int ranks = boot.ranks();
    for (int c = 0; c < connections; ++c) {
      Handle mine{};
      must(t_.listen(instance_, c % n, mine.data(), &listener_), "listen");
      std::vector<Handle> all = boot.all_gather(rank_, mine);
      std::vector<void*> handles;
      for (Handle& h : all) handles.push_back(h.data());
      void* comm = nullptr;
      must(t_.connect(comm_ctx_, handles.data(), ranks, rank_, listener_, &comm), "connect");
      comms.push_back(comm);
      if (v11) {
        void* ctx = nullptr;
        abi::ncclNetDeviceHandle_t* device = nullptr;
        must(t_.create_context(comm, config, &ctx, &device), "createContext");
        must(device != nullptr && device->handle != nullptr, "a context's handle");
        contexts.push_back(ctx);
        devices.push_back(reinterpret_cast<std::uintptr_t>(device->handle));
      }
      must(t_.close_listen(listener_), "closeListen");
      listener_ = nullptr;
    }
    if (!v11) create_contexts(config);
  }

  AnyGin& t_;
  const int rank_;
  void* comm_ctx_ = nullptr;
  void* instance_ = nullptr;
  void* listener_ = nullptr;
};

}  // namespace twinpath::test
