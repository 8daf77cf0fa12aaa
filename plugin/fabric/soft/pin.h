#pragma once
// Whether pages of this process could be pinned, as an adapter's driver pins what is registered.
//
// Threads: any.  Setup only: reads /proc/self/maps for ranges of more than two pages.
#include <cstdint>

namespace twinpath::soft {

// EFAULT where a page is missing, or may not be written although `access` lets somebody write
// (ib_access_writable); else 0.
int refuse_pinning(std::uint64_t address, std::uint64_t bytes, unsigned access);

}  // namespace twinpath::soft
