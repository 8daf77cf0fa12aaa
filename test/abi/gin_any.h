#pragma once
// One face for the GIN tables of v11 and v14, as any_net.h is for NET: each call goes through the
// version's own members with its own types, as NCCL would make it.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/nccl/abi/gin.h"
#include "test/abi/any_net.h"

namespace twinpath::test {

class AnyGin {
 public:
  using R = abi::ncclResult_t;
  virtual ~AnyGin() = default;
  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual R init(void** ctx, std::uint64_t comm_id, LogSink log) = 0;
  virtual R devices(int* n) = 0;
  virtual R properties(int dev, AnyProps& out) = 0;
  virtual R listen(void* ctx, int dev, void* handle, void** comm) = 0;
  virtual R connect(void* ctx, void** handles, int nranks, int rank, void* listener,
                    void** comm) = 0;
  // v11 passes the two counts only; backend version and the rest are v14's.
  virtual R create_context(void* comm, const abi::ncclGinConfig_v14_t& config, void** ctx,
                           abi::ncclNetDeviceHandle_t** handle) = 0;
  virtual R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags, void** mh,
                void** gin_handle) = 0;
  virtual R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                       int fd, std::uint64_t flags, void** mh, void** gin_handle) = 0;
  virtual R dereg(void* comm, void* mh) = 0;
  virtual R destroy_context(void* ctx) = 0;
  virtual R close_coll(void* comm) = 0;
  virtual R close_listen(void* listener) = 0;
  virtual R progress(void* p) = 0;
  virtual R query_last_error(void* ctx, bool* failed) = 0;
  virtual R finalize(void* ctx) = 0;
};

template <class Gin>
class GinAdapter final : public AnyGin {
 public:
  explicit GinAdapter(const Gin* table) : t_(*table) {}
  int version() const override { return Gin::kVersion; }
  const char* name() const override { return t_.name; }
  R init(void** ctx, std::uint64_t comm_id, LogSink log) override {
    return t_.init(ctx, comm_id, log);
  }
  R devices(int* n) override { return t_.devices(n); }
  // v11 has the properties of NET's v11, v14 those of its v12.
  R properties(int dev, AnyProps& out) override {
    return read_properties<typename Gin::Properties, (Gin::kVersion < 14 ? 11 : 12)>(
        t_.getProperties, dev, out);
  }
  R listen(void* ctx, int dev, void* handle, void** comm) override {
    return t_.listen(ctx, dev, handle, comm);
  }
  R connect(void* ctx, void** handles, int nranks, int rank, void* listener, void** comm) override {
    return t_.connect(ctx, handles, nranks, rank, listener, comm);
  }
  R create_context(void* comm, const abi::ncclGinConfig_v14_t& config, void** ctx,
                   abi::ncclNetDeviceHandle_t** handle) override {
    if constexpr (Gin::kVersion >= 14) {
      abi::ncclGinConfig_v14_t copy = config;
      return t_.createContext(comm, &copy, ctx, handle);
    } else {
      return t_.createContext(comm, config.nSignals, config.nCounters, ctx, handle);
    }
  }
  R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags, void** mh,
        void** gin_handle) override {
    return t_.regMrSym(comm, data, size, type, flags, mh, gin_handle);
  }
  R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
               std::uint64_t flags, void** mh, void** gin_handle) override {
    return t_.regMrSymDmaBuf(comm, data, size, type, offset, fd, flags, mh, gin_handle);
  }
  R dereg(void* comm, void* mh) override { return t_.deregMrSym(comm, mh); }
  R destroy_context(void* ctx) override { return t_.destroyContext(ctx); }
  R close_coll(void* comm) override { return t_.closeColl(comm); }
  R close_listen(void* listener) override { return t_.closeListen(listener); }
  R progress(void* p) override { return t_.ginProgress(p); }
  R query_last_error(void* ctx, bool* failed) override { return t_.queryLastError(ctx, failed); }
  R finalize(void* ctx) override { return t_.finalize(ctx); }

 private:
  const Gin& t_;
};

// `find` gives the address of a symbol by name, or null.
inline std::vector<std::unique_ptr<AnyGin>> all_gin_versions(
    const std::function<const void*(const char*)>& find) {
  std::vector<std::unique_ptr<AnyGin>> all;
  if (const void* p = find("ncclGinPlugin_v11"); p != nullptr)
    all.push_back(std::make_unique<GinAdapter<abi::ncclGin_v11_t>>(
        static_cast<const abi::ncclGin_v11_t*>(p)));
  if (const void* p = find("ncclGinPlugin_v14"); p != nullptr)
    all.push_back(std::make_unique<GinAdapter<abi::ncclGin_v14_t>>(
        static_cast<const abi::ncclGin_v14_t*>(p)));
  return all;
}

}  // namespace twinpath::test
