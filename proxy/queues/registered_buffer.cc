#include "proxy/queues/registered_buffer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"
#include "proxy/queues/completion_text.h"

namespace twinpath {

Result<std::unique_ptr<RegisteredBuffer>> RegisteredBuffer::make(const Verbs& verbs,
                                                                 const std::vector<Rail>& rails,
                                                                 std::size_t bytes, int access,
                                                                 std::size_t standby) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  auto buffer = std::make_unique<RegisteredBuffer>();
  buffer->memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(page, bytes)));
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
              object_remedy(error));
      return error == ENOMEM ? Status::no_memory : Status::system;
    }
    buffer->mrs_.push_back(own(mr, verbs.dereg_mr));
  }
  return buffer;
}

}  // namespace twinpath
