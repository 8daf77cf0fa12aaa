#include "proxy/queues/registered_buffer.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/base/reason_text.h"
#include "plugin/fabric/refusal.h"

namespace twinpath {

Result<std::unique_ptr<RegisteredBuffer>> RegisteredBuffer::make(const Verbs& verbs,
                                                                 const std::vector<Rail>& rails,
                                                                 std::size_t bytes, int access,
                                                                 std::size_t standby) {
  bytes = page_end(bytes);
  auto buffer = std::make_unique<RegisteredBuffer>();
  buffer->memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), bytes)));
  if (buffer->memory_ == nullptr) return Status::no_memory;
  std::memset(buffer->data(), 0, bytes);
  for (const Rail& rail : rails) {
    errno = 0;
    ibv_mr* mr = verbs.reg_mr_iova2(rail.port.adapter->pd, buffer->data(), bytes, buffer->address(),
                                    static_cast<unsigned>(access));
    if (mr == nullptr && buffer->mrs_.size() + standby < rails.size()) {
      const int error = errno;
      TP_WARN("%s cannot register %zu bytes of the connection's own memory: %s%s",
              rail.port.port->name.c_str(), bytes, reason_text(error).c_str(),
              remedy_of(VerbsCall::register_host, error).c_str());
      return error == ENOMEM ? Status::no_memory : Status::system;
    }
    buffer->mrs_.push_back(own(mr, verbs.dereg_mr));
  }
  return buffer;
}

}  // namespace twinpath
