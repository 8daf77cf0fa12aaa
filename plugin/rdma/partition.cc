#include "plugin/rdma/partition.h"

#include <endian.h>

#include <cstdio>

namespace twinpath {
namespace {

constexpr unsigned kFullMember = 0x8000;

std::string text_of(unsigned value) {
  char text[16];
  (void)std::snprintf(text, sizeof text, "0x%04x", value);
  return text;
}

}  // namespace

Result<std::uint16_t> find_partition(const Verbs& verbs, const Port& port, int entries,
                                     const Config& config, std::string& why) {
  if (config.ib_pkey_value < 0) return static_cast<std::uint16_t>(config.ib_pkey);
  const auto wanted = static_cast<unsigned>(config.ib_pkey_value) & ~kFullMember;
  int limited = -1;
  std::string table;
  for (int i = 0; i < entries && verbs.query_pkey != nullptr; ++i) {
    __be16 entry = 0;
    if (verbs.query_pkey(port.context, port.number, i, &entry) != 0) continue;
    const unsigned value = be16toh(entry);
    if (value == 0) continue;  // not in use
    table += (table.empty() ? "" : ", ") + std::to_string(i) + ": " + text_of(value);
    if ((value & ~kFullMember) != wanted) continue;
    if ((value & kFullMember) != 0) return static_cast<std::uint16_t>(i);
    if (limited < 0) limited = i;
  }
  if (limited >= 0) return static_cast<std::uint16_t>(limited);
  why = port.device + ":" + std::to_string(port.number) +
        ": NCCL_IB_PKEY_VALUE=" + text_of(static_cast<unsigned>(config.ib_pkey_value)) +
        " is not in its partition table; in use: " + (table.empty() ? "none" : table) +
        "; ask the subnet manager's operator, or unset the variable";
  return Status::bad_argument;
}

}  // namespace twinpath
