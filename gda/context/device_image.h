#pragma once
// The device structures of one context as bytes: queues, contexts, arrays of keys, in the layout of
// the kernels that will use them.  Pure: where the parts lie is the caller's to say.
//
// Queues are numbered: context * ranks + rank; companions come after all main queues.
//
// Threads: plain values.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gda/abi/abi.h"
#include "gda/gin.h"

namespace twinpath::gda {

struct ContextShape {
  DeviceLayout layout = DeviceLayout::v2_28;
  int ranks = 1;
  int contexts = 1;
  std::uint32_t depth = 0;
  std::uint64_t signals = 0, counters = 0;  // of each context
  bool gpu_cqs = false;                     // CQs in GPU memory
  bool gdrcopy = false;                     // and written through GDRCopy where it is there
  bool counted = false;                     // some peers' signals come without atomics
  bool adapter = false;                     // an adapter serves the queues, which lie elsewhere

  std::size_t pairs() const {
    return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(contexts);
  }
  std::size_t queues() const { return counters != 0 ? 2 * pairs() : pairs(); }
};

// One queue, as kernels see it; those to ranks that are not spoken to stay unused.
struct DeviceQueue {
  bool used = false;
  std::uint32_t qpn = 0, cqn = 0;
  std::uint64_t sq = 0, cqes = 0;  // addresses
  std::uint64_t doorbell = 0;
  std::uint64_t record = 0;  // of the send counter; 0: none
  NicHandler handler = NicHandler::cpu_proxy;
};

// What kernels put into work requests, in host order.
struct DeviceKeys {
  std::uint32_t signals = 0, counters = 0, sink = 0;  // lkeys
  std::vector<std::uint32_t> signals_there;           // rkeys, by rank
  std::uint32_t counters_here = 0;                    // rkey: companions add to this rank's own
};

// Addresses of the tables, as kernels see them.
struct DeviceTables {
  std::uint64_t signals = 0, counters = 0;
};

class DeviceImage {
 public:
  explicit DeviceImage(const ContextShape& shape);

  std::size_t bytes() const { return end_; }
  // From the image's beginning.
  std::size_t contexts() const { return contexts_; }
  std::vector<std::size_t> consumed_offsets() const;  // of each queue's consumer index

  // `base`: the address at which the image will lie.
  std::vector<std::uint8_t> fill(std::uint64_t base, std::span<const DeviceQueue> queues,
                                 const DeviceKeys& keys, const DeviceTables& tables) const;

 private:
  template <class Qp>
  void fill_queues(std::uint8_t* to, std::span<const DeviceQueue> queues) const;
  std::size_t offset_of(std::size_t queue) const;

  const ContextShape shape_;
  std::size_t qp_bytes_ = 0, context_bytes_ = 0;
  // Offsets.
  std::size_t companions_ = 0, contexts_ = 0, signal_keys_ = 0, counter_keys_ = 0;
  std::size_t gets_ = 0;  // last_issued_get, then last_visible_get, of each context
  std::size_t end_ = 0;
};

}  // namespace twinpath::gda
