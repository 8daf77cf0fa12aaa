#pragma once
// NCCL's host side of RMA, call by call, as gin_team.h has it for GIN.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "test/abi/gin_team.h"
#include "test/abi/rma_any.h"

namespace twinpath::test {

// What ncclRmaProxyConnectOnce makes, and who drives it.
class RmaHost {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kSoon = std::chrono::seconds(20);

  RmaHost(AnyRma& t, AllGather& boot, int rank, void* listen_ctx, void* connect_ctx, int contexts)
      : t_(t), rank_(rank), ranks_(boot.ranks()), signals(4096) {
    try {
      connect(boot, listen_ctx, connect_ctx, contexts);
    } catch (...) {
      close();
      throw;
    }
  }
  ~RmaHost() { close(); }
  RmaHost(const RmaHost&) = delete;
  RmaHost& operator=(const RmaHost&) = delete;

  void* reg(const Pages& pages) { return reg(pages.data(), pages.size()); }
  void* reg(void* data, std::size_t bytes) {
    void* mh = nullptr;
    must(t_.reg(comm, data, bytes, abi::kPtrHost, 0, &mh), "regMrSym");
    must(mh != nullptr, "a window's handle");
    return mh;
  }
  std::uint64_t signal(int from) {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(signals.data())[from])
        .load(std::memory_order_acquire);
  }
  void wait_signal(int from, std::uint64_t value) {
    const auto end = Clock::now() + kSoon;
    while (signal(from) < value) {
      must(t_.progress(ctx), "rmaProgress");
      must(Clock::now() < end, "a signal arrives");
      std::this_thread::yield();
    }
  }
  // ncclRmaProxyFlushNicGpuPath and its likes: test alone has to get there.
  void wait(void* request) {
    const auto end = Clock::now() + kSoon;
    int done = 0;
    while (done == 0) {
      must(t_.test(comm, request, &done), "test");
      must(Clock::now() < end, "a request becomes done");
    }
  }
  // ncclRmaProxyFinalize: contexts, then what they used, then the comm.
  void close() {
    if (ctx != nullptr) (void)t_.destroy_context(std::exchange(ctx, nullptr));
    if (signals_mh != nullptr) (void)t_.dereg(comm, std::exchange(signals_mh, nullptr));
    if (comm != nullptr) (void)t_.close_coll(std::exchange(comm, nullptr));
    if (listener_ != nullptr) (void)t_.close_listen(std::exchange(listener_, nullptr));
  }

  AnyRma& t_;
  const int rank_, ranks_;
  void *comm = nullptr, *ctx = nullptr, *signals_mh = nullptr;
  Pages signals;

 private:
  void connect(AllGather& boot, void* listen_ctx, void* connect_ctx, int contexts) {
    int n = 0;
    must(t_.devices(&n), "devices");
    must(n > 0, "an RMA device");
    Handle mine{};
    must(t_.listen(listen_ctx, rank_ % n, mine.data(), &listener_), "listen");
    std::vector<Handle> all = boot.all_gather(rank_, mine);
    std::vector<void*> handles;
    for (Handle& h : all) handles.push_back(h.data());
    must(t_.connect(connect_ctx, handles.data(), ranks_, rank_, listener_, &comm), "connect");
    abi::ncclNetProperties_v12_t props;
    must(t_.properties(rank_ % n, &props), "getProperties");
    must(props.netDeviceType == abi::kNetDeviceGinProxy, "type PROXY");
    must(t_.close_listen(std::exchange(listener_, nullptr)), "closeListen");
    abi::ncclRmaConfig_v14_t config{contexts, -1, 1};
    must(t_.create_context(comm, &config, &ctx), "createContext");
    constexpr std::uint64_t kSignalFlags = 1 | 2;  // FORCE_SO, SIGNAL_NEVER_RESET
    must(t_.reg(comm, signals.data(), signals.size(), abi::kPtrHost, kSignalFlags, &signals_mh),
         "regMrSym of signals");
    must(signals_mh != nullptr, "a handle of signals");
  }

  void* listener_ = nullptr;
};

}  // namespace twinpath::test
