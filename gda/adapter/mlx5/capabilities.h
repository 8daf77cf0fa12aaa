#pragma once
// What an adapter says of itself, and what of it we need.  Pure.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace twinpath::gda::mlx5 {

// `op_mod` kinds of QUERY_HCA_CAP.
enum class CapabilityKind : unsigned { general = 0, atomic = 3, roce = 4, general_2 = 0x20 };

struct Capabilities {
  // general
  bool reliable = false;  // RC queue pairs
  bool atomics = false;   // has the atomic kind
  bool ignores_overrun = false;
  bool waits = false;  // cross-channel: WAIT, which counters use
  // A queue pair may leave the choice of its clock to the adapter, and must where that is set to
  // real time alone (mlx5_get_qp_default_ts in Linux has the rule).  Else the field is reserved.
  bool chooses_clock = false;
  bool ethernet = false, roce = false, second_page = false;
  unsigned cqe_version = 0;
  unsigned log_max_queue = 0, log_max_cq = 0;  // entries of 64 bytes
  unsigned log_max_message = 0;
  unsigned log_reads_out = 0, log_reads_in = 0;  // READs and atomics under way, of a queue pair
  // atomic
  bool fetch_add = false, eight_bytes = false;
  bool host_order = false;  // of the bytes that they add
  // RoCE
  bool roce_v2 = false;
  std::uint16_t first_udp_port = 0, last_udp_port = 0;  // ours to choose

  // From the answer (with its header) to a question of that kind.
  void read(CapabilityKind kind, std::span<const std::uint8_t> answer);
};

// What is missing for queues of 2^`log_depth` entries, each in words that a user can pass on;
// empty: nothing.
std::vector<std::string> missing(const Capabilities& caps, unsigned log_depth);

}  // namespace twinpath::gda::mlx5
