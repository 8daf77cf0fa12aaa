#pragma once
// The kernel's counters of adapters' ports, from sysfs: what was sent again, what was congested,
// which links fail.  The plugin reads none of it; whoever looks at it does.
#include <cstdint>
#include <string>
#include <vector>

namespace twinpath::tools {

// What a counter that grows says.
enum class NicTrouble : std::uint8_t {
  retransmission,   // at who sends: an acknowledgement was missing, or told of a gap
  out_of_sequence,  // at who receives: packets were missing, or came twice
  rnr,              // the receiver had no buffer posted
  retry_exceeded,   // too many tries
  link,             // the cable, or the switch's port
  congestion,
};
const char* name_of(NicTrouble trouble);

struct NicCounter {
  std::string hca, port, name;
  NicTrouble trouble = NicTrouble::retransmission;
  std::uint64_t value = 0;
};
// Those that tell of trouble, of all adapters of `sysfs` ("/sys"), in order.
std::vector<NicCounter> nic_counters(const std::string& sysfs);

struct NicChange {
  NicCounter counter;       // the later look's
  std::uint64_t grown = 0;  // since the earlier one; 0 of what that did not have
};
std::vector<NicChange> nic_changes(const std::vector<NicCounter>& before,
                                   const std::vector<NicCounter>& after);

}  // namespace twinpath::tools
