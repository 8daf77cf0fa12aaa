#pragma once
// Starts processes with ranks, follows what they tell, and ends them: the part that never touches
// CUDA, so that nothing can hang it.
#include "test/gpu/behind/options.h"

namespace twinpath::behind {

// Runs every case in every layout and prints the results; the program's exit status.
int run_parent(const Options& options);

}  // namespace twinpath::behind
