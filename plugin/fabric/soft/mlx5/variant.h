#pragma once
// In what mlx5 adapters, their kernel driver and their libmlx5 differ, as far as programs have
// stumbled over it.  The defaults are what a program may count on least, but for what it cannot
// go without.
//
// A value; threads: any.
#include <cstdint>
#include <string>
#include <string_view>

namespace twinpath::soft::mlx5 {

// Which clocks the adapter stamps completions with; numbered as the capability (qp_ts_format of
// RoCE, sq_ts_format of InfiniBand).  A queue pair may ask for the free-running one (0), for the
// adapter's own choice (1), or for real time (2); firmware that knows no choice has the field
// reserved.
enum class Clocks : std::uint8_t { free_running = 0, real_time = 1, both = 2 };

struct Variant {
  Clocks clocks = Clocks::real_time;
  bool waits = true;            // capability cd; without it cd_master is refused
  bool few = false;             // lower limits, as a virtual function may have
  bool dedicated_pages = true;  // NC_DEDICATED: rdma-core 45 and younger
  bool commands = true;         // the context is one with DevX; else it can ask, not make
  bool answers = true;          // of refused commands; older kernels tell errno alone
  bool operator==(const Variant&) const = default;
};

// Words that differ from the defaults, with ':' between them: free-running, both-clocks, no-cd,
// few, shared-page, no-devx, no-answer.  False and `wanted` for any other.
bool parse_variant(std::string_view words, Variant& out, std::string& wanted);

}  // namespace twinpath::soft::mlx5
