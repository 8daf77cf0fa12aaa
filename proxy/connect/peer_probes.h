#pragma once
// The questions that a link asks its peer's adapter over its queues (liveness_probe.h), and the
// memory of the peer that they are written to.  Answers over queues that have been replaced since
// are nobody's.
//
// Threads: under the hub's lock.
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "plugin/base/limits.h"
#include "plugin/rdma/liveness_probe.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/queues/queue_set.h"
#include "proxy/wire/wr_id.h"

namespace twinpath {

// The peer's memory that probes are written to: by rail of the peer.
struct PeerMemory {
  std::uint64_t address = 0;
  std::array<std::uint32_t, kMaxRails> rkeys{};
};

class PeerProbes {
 public:
  PeerProbes(CompletionHub::CommId comm, const PeerMemory& memory) : comm_(comm), memory_(memory) {}

  // The rail of the peer that the queue leads to has this key to its memory.
  std::uint32_t rkey(const Queue& queue) const {
    return memory_.rkeys[static_cast<std::size_t>(queue.remote_rail)];
  }
  // Over queue `number`, unless it has no room: for who counts its questions.
  bool post(const Queue& queue, int number) const {
    return post_probe(queue.qp.get(), id(number), {memory_.address, rkey(queue)});
  }
  // The same, one at a time, for who does not: always over the same queue.
  void ask(const Queue& queue, int number) {
    probe_.ask(queue.qp.get(), id(number), {memory_.address, rkey(queue)});
  }
  // A question's completion: the number of its queue, and nothing where that has been replaced.
  // Logs an error; `name` had asked.
  std::optional<int> answered(const ibv_wc& wc, const std::string& name) {
    if (generation_of(wc.wr_id) != static_cast<std::uint16_t>(incarnation_)) return std::nullopt;
    (void)probe_.answered(wc, name);
    return slot_of(wc.wr_id);
  }
  // How often the adapter has answered; another number is a sign of life.
  std::uint64_t answers() const { return probe_.answers(); }
  // The queues are replaced.
  void renew() { ++incarnation_; }

 private:
  std::uint64_t id(int number) const {
    return encode(WrId{comm_.index, comm_.epoch, WrKind::probe, static_cast<std::uint16_t>(number),
                       static_cast<std::uint16_t>(incarnation_)});
  }

  const CompletionHub::CommId comm_;
  const PeerMemory memory_;
  std::uint32_t incarnation_ = 0;  // of the queues
  LivenessProbe probe_;
};

}  // namespace twinpath
