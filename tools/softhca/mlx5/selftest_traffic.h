#pragma once
#include <infiniband/verbs.h>

#include <string>

namespace twinpath::softhca {

struct Library;

// Leaves a case that says why it failed by what it returns.
#define TRY(condition)                                                                    \
  do {                                                                                    \
    if (!(condition))                                                                     \
      return std::string(#condition " is false (line ") + std::to_string(__LINE__) + ")"; \
  } while (0)

// Every operation that the model carries out, on host memory; why it failed, or nothing.
std::string traffic(Library& lib, ibv_context* context);

// The target of dynamically connected transport, as NVSHMEM makes one whichever transport it uses.
std::string dynamic_target(Library& lib, ibv_context* context);

}  // namespace twinpath::softhca
