#pragma once
// One face for the RMA tables of v14 to v16: each call goes through the version's own members with
// its own types, as NCCL would make it.
#include <cstring>

#include "plugin/nccl/abi/rma.h"
#include "test/abi/any_one_sided.h"

namespace twinpath::test {

// Where a put or get goes; handles as regMrSym gave them.
struct RmaMove {
  std::uint64_t src_off = 0;
  void* src = nullptr;
  std::size_t size = 0;
  std::uint64_t dst_off = 0;
  void* dst = nullptr;
};
struct RmaWord {
  std::uint64_t off = 0;
  void* mhandle = nullptr;
  std::uint64_t value = 1;
  std::uint32_t op = abi::kSignalAdd;
  bool strong = true;
};

class AnyRma : public AnyOneSided {
 public:
  virtual R properties(int dev, abi::ncclNetProperties_v12_t* out) = 0;
  // False where the table cannot be asked.
  virtual R any_signal_shows_all(void* comm, bool* shows) = 0;
  virtual R create_context(void* comm, abi::ncclRmaConfig_v14_t* config, void** ctx) = 0;
  virtual R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags,
                void** mh) = 0;
  virtual R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                       int fd, std::uint64_t flags, void** mh) = 0;
  virtual R iput(void* ctx, int context, const RmaMove& move, std::uint32_t rank,
                 void** request) = 0;
  virtual R iput_signal(void* ctx, int context, const RmaMove& move, std::uint32_t rank,
                        const RmaWord& word, void** request) = 0;
  // `move`: from remote (src) to local (dst).
  virtual R iget(void* ctx, int context, const RmaMove& move, std::uint32_t rank,
                 void** request) = 0;
  virtual R iflush(void* ctx, int context, void* mh, std::uint32_t rank, void** request) = 0;
  virtual R test(void* comm, void* request, int* done) = 0;
  virtual R progress(void* ctx) = 0;
};

template <class Rma>
class RmaAdapter final : public OneSidedAdapter<AnyRma, Rma> {
 public:
  using Base = OneSidedAdapter<AnyRma, Rma>;
  using Base::Base, Base::t_, typename Base::R;
  R properties(int dev, abi::ncclNetProperties_v12_t* out) override {
    if (out != nullptr) std::memset(out, 0xA5, sizeof *out);  // NCCL does not clear it either
    return t_.getProperties(dev, out);
  }
  R any_signal_shows_all(void* comm, bool* shows) override {
    *shows = false;
    if constexpr (Rma::kVersion >= 16) {
      abi::ncclRmaProperties_v16_t told{true};
      const R result = t_.getRmaProperties(comm, &told);
      *shows = told.flushesAllPutsOnAnySignal;
      return result;
    }
    return abi::ncclSuccess;
  }
  R create_context(void* comm, abi::ncclRmaConfig_v14_t* config, void** ctx) override {
    return t_.createContext(comm, config, ctx);
  }
  R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags,
        void** mh) override {
    return t_.regMrSym(comm, data, size, type, flags, mh);
  }
  R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
               std::uint64_t flags, void** mh) override {
    return t_.regMrSymDmaBuf(comm, data, size, type, offset, fd, flags, mh);
  }
  R iput(void* ctx, int context, const RmaMove& m, std::uint32_t rank, void** request) override {
    if constexpr (Rma::kVersion == 14)
      return t_.iput(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, request);
    else
      return t_.iput(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, 1, request);
  }
  R iput_signal(void* ctx, int context, const RmaMove& m, std::uint32_t rank, const RmaWord& w,
                void** request) override {
    if constexpr (Rma::kVersion == 14)
      return t_.iputSignal(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, w.off,
                           w.mhandle, w.value, w.op, w.strong, request);
    else
      return t_.iputSignal(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, w.off,
                           w.mhandle, w.value, w.op, w.strong, 1, request);
  }
  R iget(void* ctx, int context, const RmaMove& m, std::uint32_t rank, void** request) override {
    if constexpr (Rma::kVersion == 14)
      return t_.iget(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, request);
    else
      return t_.iget(ctx, context, m.src_off, m.src, m.size, m.dst_off, m.dst, rank, 1, request);
  }
  R iflush(void* ctx, int context, void* mh, std::uint32_t rank, void** request) override {
    return t_.iflush(ctx, context, mh, rank, request);
  }
  R test(void* comm, void* request, int* done) override { return t_.test(comm, request, done); }
  R progress(void* ctx) override { return t_.rmaProgress(ctx); }
};

inline std::vector<std::unique_ptr<AnyRma>> all_rma_versions(const FindSymbol& find) {
  std::vector<std::unique_ptr<AnyRma>> all;
  add_version<RmaAdapter, abi::ncclRma_v14_t>(all, find, "ncclRmaPlugin_v14");
  add_version<RmaAdapter, abi::ncclRma_v15_t>(all, find, "ncclRmaPlugin_v15");
  add_version<RmaAdapter, abi::ncclRma_v16_t>(all, find, "ncclRmaPlugin_v16");
  return all;
}

}  // namespace twinpath::test
