// Parent domains: a protection domain under a second handle, which carries allocators for queue
// memory.  The soft HCA's queues lie in memory of its own, so that the allocators are never called.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tools/softhca/facade.h"

namespace twinpath::softhca {
namespace {

struct ParentDomain : ibv_pd {
  ibv_pd* domain = nullptr;
};

// Global because calls that take a protection domain get nothing else; control path only.
struct ParentDomains {
  std::mutex lock;
  std::unordered_map<const ibv_pd*, std::unique_ptr<ParentDomain>> by_handle;
  std::unordered_map<const ibv_pd*, int> of_domain;  // how many stand on it
};
ParentDomains& parents() {
  static auto* const all = new ParentDomains;  // programs free them from exit handlers
  return *all;
}

}  // namespace

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  constexpr std::uint32_t kKnown =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  // Thread domains are not modelled, so that none can be given here.
  if (attr->pd == nullptr || attr->td != nullptr || (attr->comp_mask & ~kKnown) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto parent = std::make_unique<ParentDomain>();
  parent->context = context;
  parent->domain = real_pd(attr->pd);
  std::lock_guard hold(parents().lock);
  ++parents().of_domain[parent->domain];
  ParentDomain* const handle = parent.get();
  parents().by_handle[handle] = std::move(parent);
  return handle;
}

ibv_pd* real_pd(ibv_pd* pd) {
  std::lock_guard hold(parents().lock);
  auto it = parents().by_handle.find(pd);
  return it == parents().by_handle.end() ? pd : it->second->domain;
}

}  // namespace twinpath::softhca

extern "C" int ibv_dealloc_pd(ibv_pd* pd) {
  using namespace twinpath::softhca;
  std::lock_guard hold(parents().lock);
  if (auto it = parents().by_handle.find(pd); it != parents().by_handle.end()) {
    if (--parents().of_domain[it->second->domain] == 0)
      parents().of_domain.erase(it->second->domain);
    parents().by_handle.erase(it);
    return 0;
  }
  if (parents().of_domain.count(pd) != 0) return EBUSY;
  return verbs().dealloc_pd(pd);
}
