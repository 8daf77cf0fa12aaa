#pragma once
// What the subnet's administration answers: paths between its ports, groups of datagrams, and what
// it is (IB specification vol. 1, chapter 15).  A group is there as soon as somebody joins it, with
// the values that IPoIB's broadcast group has by default.
//
// Each process of a subnet has one of its own (trunk.h).  They give the same answers: a group's LID
// follows from its GID, and groups may share one.
//
// Threads: one at a time.
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

struct PortNames {
  std::uint16_t lid = 1;
  std::uint64_t guid = 0x0275000000000100;  // locally administered; of node and port
};

inline constexpr std::uint16_t kManagerLid = 0xbfff;  // no port's
inline constexpr std::uint64_t kLinkLocal = 0xfe80ull << 48;
inline constexpr std::size_t kMostGroups = 128;

using Gid = std::array<std::uint8_t, 16>;

// What is on a subnet, or on one process's part of it.
struct Members {
  std::vector<PortNames> ports;
  std::set<Gid> groups;
};

class SubnetManager {
 public:
  void add(const PortNames& port) { own_.ports.push_back(port); }
  // One that is there has another LID.
  void change(const PortNames& port);
  // Those of this process; groups of all.
  const Members& own() const { return own_; }
  // Those of the other processes, in place of those of before.  Groups stay.
  void set_others(Members others);
  // The answer to a management datagram; none for what is no question.
  std::optional<std::vector<std::uint8_t>> answer(Bytes question);

 private:
  std::uint64_t answer_path(Answer record) const;
  std::uint64_t answer_group(Answer record, bool joins);
  const PortNames* find(Bytes gid) const;

  Members own_;
  std::vector<PortNames> other_ports_;
};

}  // namespace twinpath::softhca::pci
