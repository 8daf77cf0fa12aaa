#pragma once
// One face for the RMA tables of v14 to v16, as gin_any.h is for GIN: each call goes through the
// version's own members with its own types, as NCCL would make it.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/nccl/abi/rma.h"
#include "test/abi/any_net.h"

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

class AnyRma {
 public:
  using R = abi::ncclResult_t;
  virtual ~AnyRma() = default;
  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual R init(void** ctx, std::uint64_t comm_id, LogSink log) = 0;
  virtual R devices(int* n) = 0;
  virtual R properties(int dev, abi::ncclNetProperties_v12_t* out) = 0;
  // False where the table cannot be asked.
  virtual R any_signal_shows_all(void* comm, bool* shows) = 0;
  virtual R listen(void* ctx, int dev, void* handle, void** comm) = 0;
  virtual R connect(void* ctx, void** handles, int nranks, int rank, void* listener,
                    void** comm) = 0;
  virtual R create_context(void* comm, abi::ncclRmaConfig_v14_t* config, void** ctx) = 0;
  virtual R reg(void* comm, void* data, std::size_t size, int type, std::uint64_t flags,
                void** mh) = 0;
  virtual R reg_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                       int fd, std::uint64_t flags, void** mh) = 0;
  virtual R dereg(void* comm, void* mh) = 0;
  virtual R destroy_context(void* ctx) = 0;
  virtual R close_coll(void* comm) = 0;
  virtual R close_listen(void* listener) = 0;
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
  virtual R query_last_error(void* ctx, bool* failed) = 0;
  virtual R finalize(void* ctx) = 0;
};

template <class Rma>
class RmaAdapter final : public AnyRma {
 public:
  explicit RmaAdapter(const Rma* table) : t_(*table) {}
  int version() const override { return Rma::kVersion; }
  const char* name() const override { return t_.name; }
  R init(void** ctx, std::uint64_t id, LogSink log) override { return t_.init(ctx, id, log); }
  R devices(int* n) override { return t_.devices(n); }
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
  R listen(void* ctx, int dev, void* handle, void** comm) override {
    return t_.listen(ctx, dev, handle, comm);
  }
  R connect(void* ctx, void** handles, int nranks, int rank, void* listener, void** comm) override {
    return t_.connect(ctx, handles, nranks, rank, listener, comm);
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
  R dereg(void* comm, void* mh) override { return t_.deregMrSym(comm, mh); }
  R destroy_context(void* ctx) override { return t_.destroyContext(ctx); }
  R close_coll(void* comm) override { return t_.closeColl(comm); }
  R close_listen(void* listener) override { return t_.closeListen(listener); }
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
  R query_last_error(void* ctx, bool* failed) override { return t_.queryLastError(ctx, failed); }
  R finalize(void* ctx) override { return t_.finalize(ctx); }

 private:
  const Rma& t_;
};

inline std::vector<std::unique_ptr<AnyRma>> all_rma_versions(
    const std::function<const void*(const char*)>& find) {
  std::vector<std::unique_ptr<AnyRma>> all;
  if (const void* t = find("ncclRmaPlugin_v14"))
    all.push_back(std::make_unique<RmaAdapter<abi::ncclRma_v14_t>>(
        static_cast<const abi::ncclRma_v14_t*>(t)));
  if (const void* t = find("ncclRmaPlugin_v15"))
    all.push_back(std::make_unique<RmaAdapter<abi::ncclRma_v15_t>>(
        static_cast<const abi::ncclRma_v15_t*>(t)));
  if (const void* t = find("ncclRmaPlugin_v16"))
    all.push_back(std::make_unique<RmaAdapter<abi::ncclRma_v16_t>>(
        static_cast<const abi::ncclRma_v16_t*>(t)));
  return all;
}

}  // namespace twinpath::test
