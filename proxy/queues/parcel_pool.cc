#include "proxy/queues/parcel_pool.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"

namespace twinpath {

std::unique_ptr<ParcelPool> ParcelPool::make(const Verbs& verbs, const Adapter& adapter) {
  const std::size_t bytes = page_end(kParcelStride * kBlocks);
  auto pool = std::make_unique<ParcelPool>();
  pool->adapter_ = &adapter;
  pool->memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), bytes)));
  if (pool->memory_ == nullptr) return nullptr;
  std::memset(pool->memory_.get(), 0, bytes);
  errno = 0;
  ibv_mr* mr = verbs.reg_mr_iova2(adapter.pd, pool->memory_.get(), bytes,
                                  reinterpret_cast<std::uintptr_t>(pool->memory_.get()),
                                  IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (mr == nullptr) {
    TP_WARN("%zu bytes for small messages cannot be registered: %s; they go one by one%s", bytes,
            reason_text(error).c_str(), remedy_of(VerbsCall::register_host, error).c_str());
    return nullptr;
  }
  pool->mr_ = own(mr, verbs.dereg_mr);
  for (std::uint16_t i = kBlocks; i-- > 0;) pool->give(i);
  return pool;
}

}  // namespace twinpath
