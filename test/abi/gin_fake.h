#pragma once
// A GIN transport that only notes what it is asked and answers what it is told.
//
// Threads: one.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gda/gin.h"

namespace twinpath::test {

struct GinState {
  // told
  Status make = Status::ok;
  Status answer = Status::ok;
  bool throws = false;
  bool failed = false;  // of every context

  // noted
  int made = 0;
  int listeners = 0, comms = 0, contexts = 0;  // alive
  std::vector<std::string> gone;               // in order
  int device = -1, rank = -1;
  std::uint64_t comm_id = 0;
  std::vector<std::array<std::uint8_t, kHandleBytes>> handles;
  gda::ContextSettings settings;
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryType type = MemoryType::host;
  std::uint64_t offset = 0;
  int fd = 0;
  gda::WindowTraits traits;
  gda::GinWindow* deregistered = nullptr;
};
GinState& gin();

inline constexpr std::uint64_t kFakeContextAddress = 0x7f0000001000;
inline constexpr std::uint64_t kFakeWindowAddress = 0x7f0000002000;

Result<std::unique_ptr<gda::GinTransport>> make_fake_gin();

}  // namespace twinpath::test
