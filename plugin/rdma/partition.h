#pragma once
// Which entry of a port's partition table connections use: an index, or the one of a value, which
// lies elsewhere on each host.  Any thread.
#include <cstdint>
#include <string>

#include "plugin/base/config.h"
#include "plugin/fabric/fabric.h"

namespace twinpath {

// NCCL_IB_PKEY_VALUE, else NCCL_IB_PKEY.  `entries`: how long the port's table is.  Values are the
// same if their low 15 bits are; of two entries that of a full member (bit 15) is taken, since two
// limited members cannot talk.  bad_argument and `why` (port, value, the whole table) when the
// table has none.
Result<std::uint16_t> find_partition(const Verbs& verbs, const Port& port, int entries,
                                     const Config& config, std::string& why);

}  // namespace twinpath
