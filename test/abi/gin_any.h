#pragma once
// One face for the GIN tables of v11 and v14: each call goes through the version's own members with
// its own types, as NCCL would make it.
#include "plugin/nccl/abi/gin.h"
#include "test/abi/any_one_sided.h"

namespace twinpath::test {

class AnyGin : public AnyOneSided {
 public:
  virtual R properties(int dev, AnyProps& out) = 0;
  // v11 passes the two counts only; backend version and the rest are v14's.
  virtual R create_context(void* comm, const abi::ncclGinConfig_v14_t& config, void** ctx,
                           abi::ncclNetDeviceHandle_t** handle) = 0;
  virtual R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags, void** mh,
                void** gin_handle) = 0;
  virtual R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                       int fd, std::uint64_t flags, void** mh, void** gin_handle) = 0;
  virtual R progress(void* p) = 0;
};

template <class Gin>
class GinAdapter final : public OneSidedAdapter<AnyGin, Gin> {
 public:
  using Base = OneSidedAdapter<AnyGin, Gin>;
  using Base::Base, Base::t_, typename Base::R;
  // v11 has the properties of NET's v11, v14 those of its v12.
  R properties(int dev, AnyProps& out) override {
    return read_properties<typename Gin::Properties, (Gin::kVersion < 14 ? 11 : 12)>(
        t_.getProperties, dev, out);
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
  R progress(void* p) override { return t_.ginProgress(p); }
};

inline std::vector<std::unique_ptr<AnyGin>> all_gin_versions(const FindSymbol& find) {
  std::vector<std::unique_ptr<AnyGin>> all;
  add_version<GinAdapter, abi::ncclGin_v11_t>(all, find, "ncclGinPlugin_v11");
  add_version<GinAdapter, abi::ncclGin_v14_t>(all, find, "ncclGinPlugin_v14");
  return all;
}

}  // namespace twinpath::test
