#pragma once
// How NCCL best uses the soft HCA for one collective: a plain function, the same on every rank.
//
// What is behind it (2 H200, one GPU a node, all_reduce; test/MEASUREMENTS.md): a message that NCCL
// sends from host memory, as protocol LL does, takes the copy engine twice as long as one from GPU
// memory; and every channel costs 4 us of copies a step while one block feeds 20 GB/s.  So LL is
// for parts of 32 KiB and less, and channels are as many as the parts are worth.  LL128 would be
// faster still from 32 KiB to 16 MiB (46 us at 256 KiB), but nothing says that copy engines write
// 128 bytes at once, on which it relies: it stays off unless the user turns it on.
//
// Where the soft HCA has host memory only (TWINPATH_SOFT_CUDA=0), channels are NCCL's: the threads
// that post and poll copy, each step a few microseconds.  But NCCL's proxy looks through the flags
// of LL one by one, so from some size on Simple is the faster one there, too.
#include <cstddef>

#include "plugin/nccl/abi/tuner.h"

namespace twinpath::tuner {

// The cost of what is not to be taken.  Not kAlgoProtoIgnore: NCCL 2.31 and 2.32 take the least
// cost of a tuner's table, and that one is below all.
inline constexpr float kTooDear = 1e15f;

// Where NCCL's buffers lie.
enum class Memory { gpu, host };

struct Choice {
  bool no_ll = false;  // where Simple or LL128 can be had instead
  int channels = 0;    // at most; 0: NCCL's number
};

// `bytes`: NCCL's size of the collective, the largest of what a rank sends and receives.
Choice choose(abi::ncclFunc_t function, std::size_t bytes, std::size_t ranks, Memory memory);

// Puts a choice into NCCL's table of costs (see abi/tuner.h).  What NCCL or the user has ruled out
// stays so, and LL stays where there is nothing else.
void rule_out(const Choice& choice, float* costs, int algorithms, int protocols);

}  // namespace twinpath::tuner
