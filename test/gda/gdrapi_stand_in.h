#pragma once
// Our stand-in for GDRCopy: a library with the functions that the plugin calls, over host memory
// that the test says is a GPU's.  What it maps is a second view of that memory.  It refuses what
// GDRCopy refuses, and notes what GDRCopy's documents forbid without being able to refuse it.
//
// Threads: settings before the calls; the rest under a lock of its own.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace twinpath::test {

struct GdrStandIn {
  // What it plays.
  int driver_major = 2, driver_minor = 4;
  bool module_loaded = true, by_dma_buf = false;
  int pin_error = 0, map_error = 0, info_error = 0, version_error = 0;
  std::uint64_t info_shift = 0;  // what is mapped begins so much behind what was asked for

  // Memory of the GPU: first address and bytes of each allocation, which is MAP_SHARED.
  std::map<std::uint64_t, std::size_t> allocations;
  // To be called before memory is freed.
  void (*freeing)(std::uint64_t address, std::size_t bytes) = nullptr;

  // What it has seen.
  int opened = 0, pinned = 0, mapped = 0;  // and not undone
  int pins = 0;
  int closes = 0;      // begun: read and written as an atomic
  int close_ms = 0;    // each takes so long
  std::string broken;  // the first rule that was
};

// The function that the library exports besides: its state.
using GetGdrStandIn = GdrStandIn* (*)();
inline constexpr const char* kGetGdrStandIn = "gdr_stand_in";

}  // namespace twinpath::test
