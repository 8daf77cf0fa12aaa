// What queues do seldom: another size, and memory that stands for an entry's SGEs.
#include "plugin/fabric/soft/queues.h"

#include <new>

namespace twinpath::soft {

std::uint8_t* SendQueue::make_relay(const SendEntry& e) {
  if (relays.empty()) relays.resize(entries.size);
  auto& relay = relays[slot_of(e)];
  relay.reset(new (std::nothrow) std::uint8_t[e.length]);
  return relay.get();
}

bool ReceiveQueue::resize(std::uint32_t size) {
  ReceiveQueue to;
  if (!to.allocate(size, max_sge)) return false;
  to.head = to.tail = head;
  for (std::uint64_t i = head; i != tail; ++i) to.push(entries[i], sges_at(i));
  *this = std::move(to);
  return true;
}

}  // namespace twinpath::soft
