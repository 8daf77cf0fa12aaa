#pragma once
// How a tool gives up: thrown where the cause is known, caught once in the worker's or the
// program's main function, which prints it.  Tools only; the plugin has errors as values.
#include <stdexcept>
#include <string>

namespace twinpath::tools {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Other arguments, or another environment, would mend it: exit status 2.
struct BadUsage : Failure {
  using Failure::Failure;
};

}  // namespace twinpath::tools
