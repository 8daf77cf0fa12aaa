#pragma once
// Everything that a comm is made of, once the handshake is done.  Owns what it points to.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/base/limits.h"
#include "proxy/connect/peer_link.h"
#include "proxy/queues/registered_buffer.h"
#include "proxy/wire/cts.h"
#include "topology/decide/decision.h"

namespace twinpath {

struct ConnectionParts {
  // What the peer writes to.  Sender: the ring of clear-to-send cells; receiver: the box of parcels
  // and sizes (wire/parcel.h).
  std::unique_ptr<RegisteredBuffer> ring;
  // Receiver: where cells lie until they are written, on adapters that take too little inline.
  std::unique_ptr<RegisteredBuffer> shadow;
  CtsLayout layout;
  std::uint64_t remote_memory = 0;                      // the peer's
  std::array<std::uint32_t, kMaxRails> remote_rkeys{};  // by rail of the peer
  std::unique_ptr<PeerLink> link;                       // destroyed before the ring
  // Sender: longer messages leave their immediate to a write of its own (adaptive routing).
  std::size_t split_above = SIZE_MAX;
  // What this end does with GPU memory: the sender's source, the receiver's landing.
  EndPlan plan{kAnySize};
  // The sender may cut a staged message into several writes on one queue.
  bool peer_stages = false;
  // Own rails near the GPU: messages that are not cut over all rails keep to them.
  std::vector<int> near_rails;
};

}  // namespace twinpath
