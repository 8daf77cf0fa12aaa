#include "proxy/send/send_rules.h"

#include "plugin/base/log.h"
#include "plugin/rdma/staging.h"

namespace twinpath {

Status SendRules::check(const void* data, std::size_t bytes, const ProxyMemory* memory,
                        const std::string& peer, bool& stage) const {
  if (bytes == 0) return Status::ok;
  if (bytes > most_bytes) {
    TP_WARN("isend of %zu bytes to %s: the device sends at most %zu in one message (maxP2pBytes)",
            bytes, peer.c_str(), most_bytes);
    return Status::bad_argument;
  }
  if (memory == nullptr || memory->device != device || !memory->covers(data, bytes)) {
    TP_WARN(
        "isend of %zu bytes at %p to %s: the buffer is not inside its registration on this device "
        "(%zu bytes at 0x%llx)",
        bytes, data, peer.c_str(), memory == nullptr ? 0 : memory->length,
        memory == nullptr ? 0ULL : static_cast<unsigned long long>(memory->address));
    return Status::bad_argument;
  }
  stage = memory->type == MemoryType::cuda && !plan.direct(bytes);
  if (stage ? memory->mirror == nullptr : !memory->direct)
    return not_reachable("isend", peer, *memory, bytes);
  return Status::ok;
}

}  // namespace twinpath
