#pragma once
// Takes one WQE out of a send queue that a kernel writes.  The doorbell may overtake the bytes on
// their way to host memory, because kernels order the two for the GPU only; so each slot holds
// the queue's poison until it is written, and a WQE with poison in it is looked at again.
//
// The copy is taken once and is all that is ever checked or executed: a kernel that changes a WQE
// afterwards changes nothing.
//
// Threads: the engine's.
#include <cstdint>

#include "gda/abi/wqe.h"

namespace twinpath::gda {

// 64 bytes at `slot` (aligned to 8), word by word.
WqeWords copy_wqe(const std::uint8_t* slot);

// Whether a WQE has come.
enum class Written : std::uint8_t {
  whole,
  // All but words of its data (inline data, an atomic's operand), which hold poison: late, or equal
  // to it by accident.
  but_for_data,
  no,
};

// A word (of inline data: a dword) that the WQE's own control segment announces has not come while
// it holds poison; none has where the control segment is not one of WQE `index` on queue `qpn`. All
// words of a segment count, also those that nobody reads: one that arrived after the slot's use
// would look like data of the next lap.
Written look_at(const WqeWords& words, std::uint64_t index, std::uint32_t qpn,
                std::uint64_t poison);

void poison_slot(std::uint8_t* slot, std::uint64_t poison);

}  // namespace twinpath::gda
