#pragma once
// The bytes of each command that makes, joins, ends or asks queues.  Pure; refused values are the
// adapter's to name (adapter.h).  test/gda/mlx5 has them beside those of NCCL.
#include <array>
#include <cstdint>

#include "gda/adapter/mlx5/layout.h"

namespace twinpath::gda::mlx5 {

// Where a queue and its doorbell record lie: places in registered memory, of which there may be
// two.
struct Where {
  std::uint32_t umem = 0;
  std::uint64_t queue = 0;  // bytes from the umem's beginning; 4 KiB-aligned
  std::uint32_t record_umem = 0;
  std::uint64_t record = 0;  // 8-aligned
};

struct CqRequest {
  Where place;
  unsigned log_entries = 0;  // of 64 bytes
  bool collapsed = false;
  std::uint32_t uar_page = 0;
  std::uint32_t eqn = 0;
};
Command create_cq(const CqRequest& request);

struct QpRequest {
  Where place;
  unsigned log_entries = 0;  // of 64 bytes
  std::uint32_t pd = 0;
  std::uint32_t cqn = 0;
  std::uint32_t uar_page = 0;
  bool waits = false;  // executes WAIT
  // Completions are stamped by the clock that the adapter is set to, else by the free-running one.
  bool adapters_clock = false;
};
// RC, without receives.
Command create_qp(const QpRequest& request);

// How packets find the far end, and what both ends agreed on.
struct Path {
  std::uint8_t port = 1;  // of this adapter
  std::uint16_t pkey_index = 0;
  std::uint8_t service_level = 0;
  bool ethernet = false;
  std::uint16_t lid = 0;  // InfiniBand, else 0
  bool global = false;    // by GID; always on Ethernet
  std::array<std::uint8_t, 16> gid{};
  std::uint8_t gid_index = 0;  // of this end
  std::uint8_t hop_limit = 0;
  std::uint8_t traffic_class = 0;
  std::array<std::uint8_t, 6> mac{};  // Ethernet: the next hop's
  std::uint16_t udp_port = 0;         // RoCE v2: ours
};
struct Joint {
  Path path;
  unsigned mtu = 1;  // 1..5: 256..4096 bytes
  unsigned log_message = 30;
  std::uint32_t far_qpn = 0, far_psn = 0, psn = 0;
  // READs and atomics under way, as powers of two.
  unsigned log_reads_in = 0, log_reads_out = 0;
  std::uint8_t timeout = 20, retry_count = 7;
};
Command to_init(std::uint32_t qpn, const Path& path);
Command to_receive(std::uint32_t qpn, const Joint& joint);
Command to_send(std::uint32_t qpn, const Joint& joint);
Command to_error(std::uint32_t qpn);
Command query_qp(std::uint32_t qpn);
Command query_capabilities(unsigned kind);

}  // namespace twinpath::gda::mlx5
