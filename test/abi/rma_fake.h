#pragma once
// An RMA transport that only notes what it is asked and answers what it is told.
//
// Threads: one.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gda/rma/rma.h"

namespace twinpath::test {

struct RmaState {
  // told
  Status answer = Status::ok;
  bool throws = false;
  bool failed = false, done = false, nothing_to_flush = false, reaches_gpus = true;
  bool shows_all = false;

  // noted
  int listeners = 0, comms = 0, contexts = 0;  // alive
  std::vector<std::string> gone;               // in order
  int device = -1, rank = -1, context = -1;
  std::uint64_t comm_id = 0;
  gda::RmaSettings settings;
  std::size_t bytes = 0;
  MemoryType type = MemoryType::host;
  std::uint64_t offset = 0;
  int fd = 0;
  gda::WindowTraits traits;
  gda::RmaWindow* deregistered = nullptr;
  gda::RmaTransfer transfer;
  bool signals = false;
  gda::RmaSignal signal;
  std::string call;
};
RmaState& rma();

Result<std::unique_ptr<gda::RmaTransport>> make_fake_rma();

}  // namespace twinpath::test
