#pragma once
// What the subnet's administration answers: paths between its ports, groups of datagrams, and what
// it is (IB specification vol. 1, chapter 15).  A group is there as soon as somebody joins it, with
// the values that IPoIB's broadcast group has by default.
//
// Threads: one at a time.
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

struct PortNames {
  std::uint16_t lid = 1;
  std::uint64_t guid = 0x0275000000000100;  // locally administered; of node and port
};

inline constexpr std::uint16_t kManagerLid = 0xbfff;  // no port's
inline constexpr std::uint64_t kLinkLocal = 0xfe80ull << 48;

class SubnetManager {
 public:
  void add(const PortNames& port) { ports_.push_back(port); }
  // The answer to a management datagram; none for what is no question.
  std::optional<std::vector<std::uint8_t>> answer(Bytes question);

 private:
  using Gid = std::array<std::uint8_t, 16>;
  std::uint64_t answer_path(Answer record) const;
  std::uint64_t answer_group(Answer record, bool joins);
  const PortNames* find(Bytes gid) const;

  std::vector<PortNames> ports_;
  std::map<Gid, std::uint16_t> groups_;  // LID
};

}  // namespace twinpath::softhca::pci
