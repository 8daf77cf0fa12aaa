#pragma once
// What is asked for by create_context, checked; the same for queues of all kinds.
//
// Threads: setup.
#include <vector>

#include "gda/context/device_image.h"
#include "gda/team/gin_core.h"

namespace twinpath::gda {

// Layout, ranks, numbers and depth; a depth is rounded up to a power of two.
ContextShape shape_of(const GinCore& core, const ContextSettings& settings);
// Logs what is wrong.
Status check_settings(const ContextSettings& settings, const ContextShape& shape);
// By rank.
std::vector<bool> spoken_to(const GinCore& core, const ContextSettings& settings);

}  // namespace twinpath::gda
