// Devices: the list, opening, events.
#include <cstdlib>

#include "tools/softhca/facade.h"

using namespace twinpath::softhca;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  if (facade() == nullptr) {
    errno = ENOSYS;  // what libibverbs says on a machine without RDMA
    return nullptr;
  }
  return verbs().get_device_list(count);
}

void ibv_free_device_list(ibv_device** list) {
  if (list != nullptr) verbs().free_device_list(list);
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

// There is no kernel to number them.
int ibv_get_device_index(ibv_device*) { return -1; }

__be64 ibv_get_device_guid(ibv_device* device) { return verbs().get_device_guid(device); }

ibv_context* ibv_open_device(ibv_device* device) {
  ibv_context* const context = verbs().open_device(device);
  if (context != nullptr) extend(context);
  return context;
}

int ibv_close_device(ibv_context* context) { return verbs().close_device(context); }

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return verbs().get_async_event(context, event);
}

void ibv_ack_async_event(ibv_async_event* event) { verbs().ack_async_event(event); }

// Objects of another process need its kernel file, and there is none.
ibv_context* ibv_import_device(int) { return unsupported<ibv_context>(); }
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) { return unsupported<ibv_pd>(); }
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) { return unsupported<ibv_mr>(); }
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) { return unsupported<ibv_dm>(); }
void ibv_unimport_dm(ibv_dm*) {}

// A child may use its parent's memory as it likes: no page is pinned.  It has no adapter, though.
int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
int ibv_dontfork_range(void*, std::size_t) { return 0; }
int ibv_dofork_range(void*, std::size_t) { return 0; }

}  // extern "C"
