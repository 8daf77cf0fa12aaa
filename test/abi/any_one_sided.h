#pragma once
// What the tables of GIN and RMA have in common, with one face for each kind's versions, as
// any_net.h is for NET: gin_any.h and rma_any.h add what is their own.
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "test/abi/any_net.h"

namespace twinpath::test {

class AnyOneSided {
 public:
  using R = abi::ncclResult_t;
  virtual ~AnyOneSided() = default;
  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual R init(void** ctx, std::uint64_t comm_id, LogSink log) = 0;
  virtual R devices(int* n) = 0;
  virtual R listen(void* ctx, int dev, void* handle, void** comm) = 0;
  virtual R connect(void* ctx, void** handles, int nranks, int rank, void* listener,
                    void** comm) = 0;
  virtual R dereg(void* comm, void* mh) = 0;
  virtual R destroy_context(void* ctx) = 0;
  virtual R close_coll(void* comm) = 0;
  virtual R close_listen(void* listener) = 0;
  virtual R query_last_error(void* ctx, bool* failed) = 0;
  virtual R finalize(void* ctx) = 0;
};

template <class Any, class Table>
class OneSidedAdapter : public Any {
 public:
  using R = abi::ncclResult_t;
  explicit OneSidedAdapter(const Table* table) : t_(*table) {}
  int version() const override { return Table::kVersion; }
  const char* name() const override { return t_.name; }
  R init(void** ctx, std::uint64_t id, LogSink log) override { return t_.init(ctx, id, log); }
  R devices(int* n) override { return t_.devices(n); }
  R listen(void* ctx, int dev, void* handle, void** comm) override {
    return t_.listen(ctx, dev, handle, comm);
  }
  R connect(void* ctx, void** handles, int nranks, int rank, void* listener, void** comm) override {
    return t_.connect(ctx, handles, nranks, rank, listener, comm);
  }
  R dereg(void* comm, void* mh) override { return t_.deregMrSym(comm, mh); }
  R destroy_context(void* ctx) override { return t_.destroyContext(ctx); }
  R close_coll(void* comm) override { return t_.closeColl(comm); }
  R close_listen(void* listener) override { return t_.closeListen(listener); }
  R query_last_error(void* ctx, bool* failed) override { return t_.queryLastError(ctx, failed); }
  R finalize(void* ctx) override { return t_.finalize(ctx); }

 protected:
  const Table& t_;
};

// `find` gives the address of a symbol by name, or null.
using FindSymbol = std::function<const void*(const char*)>;

template <template <class> class Adapter, class Table, class Any>
void add_version(std::vector<std::unique_ptr<Any>>& all, const FindSymbol& find,
                 const char* symbol) {
  if (const void* table = find(symbol); table != nullptr)
    all.push_back(std::make_unique<Adapter<Table>>(static_cast<const Table*>(table)));
}

}  // namespace twinpath::test
