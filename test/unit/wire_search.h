#pragma once
// Tries everything that can happen in the model of the wire protocol.
#include <string>

#include "test/unit/wire_model.h"

namespace twinpath::model {

struct Outcome {
  Fault fault = Fault::none;
  std::size_t states = 0;
  std::string path;  // what led to the fault
};

// Tries everything that can happen when a receiver posts `program` and a sender sends a message
// for each of its buffers, in the order of the buffers for each tag and in any order of tags.
Outcome explore(const Program& program, const Defects& defects = {});

}  // namespace twinpath::model
