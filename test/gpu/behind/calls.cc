#include "test/gpu/behind/calls.h"

#include <vector>

namespace twinpath::behind {

std::span<const Call> all_calls() {
  static const std::vector<Call> calls = [] {
    std::vector<Call> out;
    for (const auto part : {kernel_calls(), copy_calls(), memory_calls()}) {
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }();
  return calls;
}

const Call* find_call(std::string_view name) {
  for (const Call& call : all_calls()) {
    if (name == call.name) return &call;
  }
  return nullptr;
}

}  // namespace twinpath::behind
