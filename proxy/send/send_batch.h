#pragma once
// Messages that leave together: gathered between two tests, posted as one chain of work requests
// behind one doorbell, with one completion for all of them.  Small host messages whose cells are
// neighbours share an RDMA write (parcel.h).
//
// All messages of a batch use one queue.  Threads: under the hub's lock.
#include <array>

#include "proxy/memory/mr_cache.h"
#include "proxy/queues/queue_set.h"
#include "proxy/queues/registered_buffer.h"
#include "proxy/wire/cts.h"

namespace twinpath {

// Messages of one batch.
inline constexpr int kSendBatch = 16;

// One message and the cell that it answers.
struct Outgoing {
  std::uint64_t wr_id = 0;
  std::uint64_t seq = 0;
  Cts cts;
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  const ProxyMemory* memory = nullptr;  // null only with no bytes
};

// The write of [offset, offset + bytes) of a message.  `sge` must live until it is posted.
ibv_send_wr data_write(const Outgoing& message, const Queue& queue, std::size_t offset,
                       std::size_t bytes, std::uint32_t immediate, ibv_sge& sge);

class SendBatch {
 public:
  // `memory`: the connection's own, with the box behind the ring of `layout`; `remote_box` is the
  // receiver's, with a key per rail of the receiver.
  SendBatch(RegisteredBuffer& memory, CtsLayout layout, std::uint64_t remote_box,
            const std::array<std::uint32_t, kMaxRails>& remote_rkeys)
      : memory_(memory), layout_(layout), remote_box_(remote_box), remote_rkeys_(remote_rkeys) {}

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kSendBatch; }
  // The queue of the messages inside.
  int queue() const { return queue_; }
  void add(int queue, const Outgoing& message);
  // Posts all of them; the completion of the one added last speaks for all.  0 or an errno.
  int post(Queue& queue);

 private:
  struct Chain;
  static bool fits_parcel(const Outgoing& m);
  void write_alone(const Outgoing& m, const Queue& queue, Chain& chain);
  // `n` messages in the order of their cells, within one span.
  void write_parcel(const Outgoing* const* messages, int n, const Queue& queue, Chain& chain);

  RegisteredBuffer& memory_;
  const CtsLayout layout_;
  const std::uint64_t remote_box_;
  const std::array<std::uint32_t, kMaxRails> remote_rkeys_;
  std::array<Outgoing, kSendBatch> messages_;
  int count_ = 0;
  int queue_ = 0;
};

}  // namespace twinpath
