#pragma once
// An adapter whose descriptor for events is always readable, and which tells of an address that has
// changed when a test wants it: ports, and addresses, are looked at then.
//
// Threads: on() before the adapter is used; rung from any.
#include <fcntl.h>

#include <atomic>

#include "plugin/base/owned.h"
#include "test/gda/gin_ranks.h"

namespace twinpath::test {

struct Rings {
  static inline std::atomic<bool> rung{false};
  static inline UniqueFd readable;
  static inline Verbs below;

  static int event(ibv_context* c, ibv_async_event* out) {
    if (c->async_fd != readable.get()) return below.get_async_event(c, out);
    if (!rung.exchange(false)) return -1;
    *out = {};
    out->event_type = IBV_EVENT_GID_CHANGE;
    out->element.port_num = 1;
    return 0;
  }
  static void on(Fabric& fabric, const char* device) {
    below = fabric.verbs;
    fabric.verbs.get_async_event = event;
    readable = UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
    for (const Port& port : fabric.ports)
      if (port.device == device) port.context->async_fd = readable.get();
  }
};

}  // namespace twinpath::test
