#pragma once
// A comm of a plugin's table as the transport's seam has it, so that what drives that (traffic.h)
// drives NCCL's calls, of any version.
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/transport.h"
#include "test/abi/any_net.h"

namespace twinpath::test {

// NCCL is told nothing finer than this.
inline Status status_of(abi::ncclResult_t result, bool made) {
  if (result == abi::ncclSuccess) return made ? Status::ok : Status::again;
  return result == abi::ncclRemoteError       ? Status::remote
         : result == abi::ncclInvalidArgument ? Status::bad_argument
         : result == abi::ncclInvalidUsage    ? Status::unsupported
         : result == abi::ncclInternalError   ? Status::internal
                                              : Status::system;
}

class NetRequest final : public Request {
 public:
  Status test(int& done, int* sizes) override {
    const Status s = status_of(net_->test(request_, &done, sizes), true);
    if (s != Status::ok || done != 0) busy_ = false;  // dead, as the plugin's own is
    return s;
  }

 private:
  friend class NetRequests;
  AnyNet* net_ = nullptr;
  void* request_ = nullptr;
  bool busy_ = false;
};

// Of one comm: one thread.
class NetRequests {
 public:
  explicit NetRequests(AnyNet& net) : net_(net) {}
  Status answer(abi::ncclResult_t result, void* made, Request** request) {
    *request = made != nullptr && result == abi::ncclSuccess ? take(made) : nullptr;
    return status_of(result, *request != nullptr);
  }

 private:
  Request* take(void* made) {
    NetRequest* free = nullptr;
    for (const auto& r : all_)
      if (!r->busy_) free = r.get();
    if (free == nullptr) free = all_.emplace_back(std::make_unique<NetRequest>()).get();
    free->net_ = &net_;
    free->request_ = made;
    free->busy_ = true;
    return free;
  }
  AnyNet& net_;
  std::vector<std::unique_ptr<NetRequest>> all_;
};

class NetMemory final : public Memory {
 public:
  explicit NetMemory(void* handle) : handle_(handle) {}
  void* const handle_;
};

// What sends and receives have in common.  `Seam` is SendComm or RecvComm.
template <class Seam>
class NetComm : public Seam {
 public:
  Result<Memory*> register_memory(void* data, std::size_t bytes, MemoryType type, std::uint64_t,
                                  int) override {
    void* handle = nullptr;
    const int kind = type == MemoryType::cuda ? abi::kPtrCuda : abi::kPtrHost;
    const abi::ncclResult_t r = net_.reg(comm_, data, bytes, kind, &handle);
    const Status s = status_of(r, handle != nullptr);
    if (s != Status::ok) return s;
    return new NetMemory(handle);
  }
  Status deregister_memory(Memory* memory) override {
    const std::unique_ptr<NetMemory> mine(static_cast<NetMemory*>(memory));
    return status_of(net_.dereg(comm_, mine->handle_), true);
  }

 protected:
  NetComm(AnyNet& net, void* comm) : net_(net), comm_(comm), requests_(net) {}
  static void* handle_of(Memory* memory) {
    return memory == nullptr ? nullptr : static_cast<NetMemory*>(memory)->handle_;
  }
  AnyNet& net_;
  void* const comm_;
  NetRequests requests_;
};

class NetSend final : public NetComm<SendComm> {
 public:
  NetSend(AnyNet& net, void* comm) : NetComm(net, comm) {}
  ~NetSend() override { (void)net_.close_send(comm_); }
  Status isend(void* data, std::size_t bytes, int tag, Memory* memory, Request** request) override {
    void* made = nullptr;
    const abi::ncclResult_t r = net_.isend(comm_, data, bytes, tag, handle_of(memory), &made);
    return requests_.answer(r, made, request);
  }
};

class NetRecv final : public NetComm<RecvComm> {
 public:
  NetRecv(AnyNet& net, void* comm) : NetComm(net, comm) {}
  ~NetRecv() override { (void)net_.close_recv(comm_); }
  using RecvComm::irecv;
  Status irecv(const RecvBuffers& buffers, bool optional, Request** request) override {
    std::array<void*, kMaxRecvs> data, handles;
    std::array<int, kMaxRecvs> tags;
    for (std::size_t i = 0; i < buffers.count; ++i) {
      data[i] = buffers.data[i];
      tags[i] = buffers.tags[i];
      handles[i] = handle_of(buffers.memory(i));
    }
    void* made = optional ? reinterpret_cast<void*>(abi::kOptionalRecvCompletion) : nullptr;
    const abi::ncclResult_t r = net_.irecv(comm_, static_cast<int>(buffers.count), data.data(),
                                           buffers.bytes, tags.data(), handles.data(), &made);
    return requests_.answer(r, made, request);
  }
  Status iflush(std::span<const RecvBuffer> buffers, Request** request) override {
    std::array<void*, kMaxRecvs> data, handles;
    std::array<int, kMaxRecvs> sizes;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      data[i] = buffers[i].data;
      sizes[i] = told_size(buffers[i].bytes);
      handles[i] = handle_of(buffers[i].memory);
    }
    void* made = nullptr;
    const abi::ncclResult_t r = net_.iflush(comm_, static_cast<int>(buffers.size()), data.data(),
                                            sizes.data(), handles.data(), &made);
    const Status s = requests_.answer(r, made, request);
    return s == Status::again ? Status::ok : s;  // nothing to do
  }
};

}  // namespace twinpath::test
