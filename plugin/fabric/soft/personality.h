#pragma once
// Whose adapter the soft HCA is like (`like=` of TWINPATH_SOFT_HCAS): what the providers of
// rdma-core and the kernel's drivers grant, refuse and ignore, where they differ.  The model's own
// adapter is one of them, without a name.  Pure; README.md shows the table, and a test keeps both
// alike.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace twinpath::soft {

// What create_qp does with more inline data than there is room for.
enum class InlineLimit : std::uint8_t {
  refuse,  // as with any other limit
  clamp,   // grants less
  ignore,  // grants all of it; IBV_SEND_INLINE means nothing, and data are read by their lkey
};

// What a port's GID table begins with; the rest is empty.
enum class Gids : std::uint8_t {
  v2,          // link-local, IPv4-mapped: all RoCE v2
  v1_and_v2,   // both of these of RoCE v1 before that of v2, as the kernel orders them
  infiniband,  // the port's own
};

// What queues it makes, and what create_qp says of others.
struct QueueLimits {
  std::uint32_t max_inline;
  InlineLimit inline_limit;
  int refusal;  // errno that create_qp leaves for what is over a limit; 0: it sets none
  std::uint32_t max_send_sge, max_recv_sge, max_read_sge;
  std::uint32_t max_wr;
  int max_cqe;
  std::uint8_t reads_in, reads_out;  // outstanding READs and atomics of a queue pair
  bool srq;
};

struct PortRules {
  std::uint32_t max_message;  // as shown; 0: not shown
  Gids gids;
  std::uint16_t gid_entries;  // in use or not
  bool infiniband;            // ports have LIDs, and need no global header
  std::uint16_t roce_lid;     // that an Ethernet port shows
  int speed_gbps;             // unless the specification says another
  bool xdr;                   // 200 Gb/s a lane, which the old field of the speed cannot say
  bool fixed_speed;           // shows this speed, whatever it is
  std::uint32_t ece_vendor, ece;

  std::uint64_t largest_message() const {
    return max_message != 0 ? max_message : std::uint64_t{1} << 30;
  }
};

struct Personality {
  std::string_view name;  // empty: our own
  struct Identity {
    std::string_view driver;  // of its PCI function in sysfs
    std::string_view device;  // begins its names; a number follows
    std::uint32_t vendor_id, part_id;
  } identity;
  QueueLimits queues;
  struct WorkRules {
    ibv_atomic_cap atomics;  // none: posting one is EINVAL
    int post_in_error;       // what posting to a queue pair in error gives; 0: it is flushed
    bool negative;           // post_send and post_recv return errno values below 0
  } work;
  struct MemoryRules {
    unsigned access;  // rights that a registration may have; others are EINVAL
    bool dmabuf;
  } memory;
  PortRules ports;
};

const Personality& own_personality();
// All others, each with its name.
std::span<const Personality> personalities();
// Null: there is none of that name.
const Personality* find_personality(std::string_view name);

// What an entry of the GID table is.
struct GidKind {
  bool used = false, mapped = false;
  int roce_version = 0;  // 0: InfiniBand
};
GidKind gid_kind(const Personality& p, int index);

}  // namespace twinpath::soft
