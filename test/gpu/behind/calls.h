#pragma once
// The calls that are made behind an all-reduce: each a name, a line of help, and a function that
// makes it ready for one rank.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>

namespace twinpath::behind {

// What a call may use.  The stream is the all-reduce's.
struct Place {
  int device = 0;
  int rank = 0, ranks = 1;
  cudaStream_t stream = nullptr;
  const float* sums = nullptr;  // what the all-reduce writes
  std::size_t bytes = 0;        // of that
  bool one_process = false;     // all ranks in this process
  int gpus = 1;                 // that this process sees
};

// One rank's call in one case.  Both are given the number of the round.
struct Action {
  // Made right behind the all-reduce.  Throws tools::Failure.
  std::function<void(int)> act;
  // Once the stream is idle: number of wrong elements.  May be empty.
  std::function<std::uint64_t(int)> wrong = {};
};

// Thrown where a call has no meaning, with the reason.
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Call {
  const char* name;
  const char* what;
  Action (*make)(const Place&);  // throws Skipped, tools::Failure
};

std::span<const Call> all_calls();
const Call* find_call(std::string_view name);  // null: none of that name

// By room: calls.cc puts them together.
std::span<const Call> copy_calls();    // calls_copy.cc
std::span<const Call> memory_calls();  // calls_memory.cc
std::span<const Call> kernel_calls();  // calls_kernel.cc

}  // namespace twinpath::behind
