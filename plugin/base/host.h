#pragma once
// Which host this is.
//
// Threads: any.
#include <cstdint>
#include <string>

namespace twinpath {

// Equal in all processes of one booted host, whatever containers they are in.
std::uint64_t host_hash();
std::string host_name();

}  // namespace twinpath
