#pragma once
// What the model says of itself in answer to QUERY_HCA_CAP.  One table: capabilities.cc.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "plugin/fabric/soft/mlx5/variant.h"

namespace twinpath::soft::mlx5 {

// `op_mod` of QUERY_HCA_CAP is a kind times 2, plus 1 for what is in force (else what is possible;
// the model has no difference).
enum class CapabilityKind : unsigned { general = 0, atomic = 3, roce = 4, general_2 = 0x20 };

// What depends on the adapter that is asked.
struct DeviceFacts {
  bool ethernet = true;
  unsigned ports = 1;
  unsigned gid_entries = 8;  // of a port
  unsigned completion_vectors = 1;
  std::vector<std::uint16_t> lids;  // of the ports, from the first; all 0 on Ethernet
  Variant variant{};
  // The commands are those of the kernel's own driver: it makes queue pairs that programs may not
  // have (Service), and waits for events.
  bool kernel = false;
  std::function<void(std::uint32_t eqn, std::uint32_t cqn)> notify{};
  std::function<void(std::uint32_t cqn)> overflow{};  // CompletionQueueFacts::overflowed
};

// The event queue of completion vector 0; those below are the kernel's own.
inline constexpr unsigned kFirstEventQueue = 8;
// As powers of two: the longest queues, and READs and atomics under way of a queue pair.
struct Limits {
  unsigned qp = 15, cq = 22, reads = 4;
};
constexpr Limits limits_of(const Variant& variant) {
  return variant.few ? Limits{10, 12, 2} : Limits{};
}

// Writes the answer's fields behind its header of 16 bytes; `answer` is zero and may end early.
// False, and nothing written, for a kind that the model does not have.
bool write_capabilities(unsigned kind, const DeviceFacts& facts, std::span<std::uint8_t> answer);

}  // namespace twinpath::soft::mlx5
