#pragma once
// Adapters that place data in GPU memory later than what follows it in host memory, and whose
// atomics are their own: the soft HCA with the faults late_us and split_us, and a stand-in for the
// driver, which says that the program uses GPU 0.
//
// For programs of their own: a process has one adapter with one list of faults.
#include <dlfcn.h>

#include <cstdlib>

#include "test/gda/gin_ranks.h"

namespace twinpath::test {

inline bool use_gpu() {
  static void* const library = [] {
    const char* path = std::getenv("TWINPATH_TEST_CURRENT_GPU");
    return path != nullptr ? dlopen(path, RTLD_NOW) : nullptr;
  }();
  return library != nullptr;
}

inline Config ordering_config(bool atomics) {
  Config c = gin_config();
  c.soft_cuda = SoftCuda::inprocess;
  c.mode = ModeChoice::proxy;
  c.gin_atomics = atomics ? AtomicsChoice::always : AtomicsChoice::never;
  c.soft_faults = "late_us=300000,split_us=2000";
  return c;
}

}  // namespace twinpath::test
