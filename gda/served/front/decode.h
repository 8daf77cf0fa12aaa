#pragma once
// What a WQE asks for, checked field by field: nothing derived from a kernel's bytes leaves here
// but addresses inside a window that the kernel has the right to use.
//
// Ignored, because NCCL leaves them uninitialised: signature, the two bytes before fm_ce_se, imm,
// the reserved dword behind rkey, the first 8 bytes of WAIT's segment, FA's compare.  fm_ce_se is
// ignored too: every WQE gets its CQE.
//
// Threads: a pure function.
#include <cstdint>

#include "gda/abi/operation.h"
#include "gda/abi/wqe.h"
#include "gda/served/front/key_table.h"

namespace twinpath::gda {

struct Decoded {
  Syndrome syndrome = Syndrome::none;  // of the error CQE; none: valid
  std::uint8_t opcode = 0;             // as written, for the CQE
  bool wait = false;                   // then `operation` says nothing
  std::uint32_t awaited = 0;           // low 32 bits of the CQE number
  std::uint32_t cqn = 0;
  Operation operation;
};

// `index`, `qpn`: what the WQE must say of itself.  `peer`: rank whose keys count as remote.
Decoded decode(const WqeWords& words, std::uint64_t index, std::uint32_t qpn, const KeyTable& keys,
               int peer);

}  // namespace twinpath::gda
