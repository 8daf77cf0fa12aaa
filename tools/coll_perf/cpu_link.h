#pragma once
// One direction of a connection between two ranks over the net ABI, used as NCCL uses it: up to
// eight operations outstanding, tested in order, retried when the plugin gives no request.
//
// Threads: the rank's only thread.  A link owns its comm and its registrations.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/common/group.h"
#include "tools/common/net_plugin.h"

namespace twinpath::coll {

using tools::Group;

inline constexpr std::uint64_t kDepth = 8;              // NCCL_STEPS
inline constexpr std::size_t kSliceBytes = 256U << 10;  // largest message

// The memory a rank works on; every link registers all of it.
enum RegionId : std::size_t { kInput, kOutput, kScratch, kRegions };
struct Region {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};
using Regions = std::array<Region, kRegions>;

class Link {
 public:
  Link(tools::NetPlugin& net, void* comm, bool sends, int peer, const Regions& regions);
  Link(Link&& other) noexcept;
  Link& operator=(Link&&) = delete;
  ~Link();

  // Starts operation number posted(); false: no room, try later.
  bool post(RegionId region, std::size_t offset, std::size_t bytes);
  // Completes what is complete, in order; true when something was.
  bool poll();
  std::uint64_t posted() const { return posted_; }
  std::uint64_t done() const { return done_; }
  bool has_room() const { return posted_ - done_ < kDepth; }
  void restart() { posted_ = done_ = 0; }
  int peer() const { return peer_; }

 private:
  void check(tools::NetResult result, const char* what) const;

  struct Operation {
    void* request = nullptr;
    std::size_t bytes = 0;
  };
  tools::NetPlugin* net_;
  void* comm_;
  bool sends_;
  int peer_;
  Regions regions_;
  std::array<void*, kRegions> memory_{};
  std::array<Operation, kDepth> operations_{};
  std::uint64_t posted_ = 0;
  std::uint64_t done_ = 0;
};

struct Links {
  std::vector<Link> send;  // in the order of send_to
  std::vector<Link> recv;
};

// Real handshakes: listen, exchange of handles, then connect and accept in turn until all are
// made.  Collective over the group.
Links connect_links(tools::NetPlugin& net, int device, Group& group, std::span<const int> send_to,
                    std::span<const int> recv_from, const Regions& regions, double timeout_s);

}  // namespace twinpath::coll
