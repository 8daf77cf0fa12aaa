#include "plugin/fabric/soft/peer.h"

namespace twinpath::soft {

std::shared_ptr<ImportedAllocation> Peer::allocation(std::uint64_t alloc_id, std::uint32_t key,
                                                     bool& failed) {
  std::lock_guard hold(lock);
  auto& slot_of = allocations[alloc_id];
  if (!slot_of) {
    slot_of = std::make_shared<RemoteAllocation>();
    Message m{};
    m.kind = MessageKind::export_request;
    m.slot = own_slot;
    m.a = alloc_id;
    m.b = key;
    if (!wire.send(m)) {
      slot_of->state.store(RemoteAllocation::State::failed, std::memory_order_release);
    }
  }
  switch (slot_of->state.load(std::memory_order_acquire)) {
    case RemoteAllocation::State::requested:
      return nullptr;
    case RemoteAllocation::State::failed:
      failed = true;
      return nullptr;
    case RemoteAllocation::State::ready:
      break;
  }
  return slot_of->mapping;
}

}  // namespace twinpath::soft
