#pragma once
// Failures are thrown, not REQUIREd: helpers and ranks run on threads, where Catch2 cannot.
#include <stdexcept>
#include <string>

#include "plugin/nccl/abi/types.h"

namespace twinpath::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void must(bool ok, const std::string& what) {
  if (!ok) throw Failure(what);
}
inline void must(abi::ncclResult_t result, const std::string& what) {
  if (result != abi::ncclSuccess) throw Failure(what + ": result " + std::to_string(result));
}

}  // namespace twinpath::test
