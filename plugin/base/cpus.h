#pragma once
// How many processors this process may really use: its affinity, and what its control group grants
// it of their time.
//
// Threads: any.  Reads files; not for the data path.
#include <string_view>

namespace twinpath {

// At least 1.
int usable_cpus();

// What cpu.max of control groups v2 says ("200000 100000"), in whole processors, rounded up; 0: no
// limit, or no such text.
int cpus_of_quota(std::string_view cpu_max);

}  // namespace twinpath
