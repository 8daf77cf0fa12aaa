#pragma once
// Which communicator a connection belongs to, by the names that NCCL's profiler interface has told
// the plugin.  Pure.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace twinpath::tools {

struct CommunicatorSample {
  std::uint64_t id = 0;  // NCCL's commId
  std::uint16_t session = 0;
  std::string name;                   // empty: its user gave it none
  std::optional<std::uint32_t> rank;  // of this process
  std::uint32_t ranks = 0, nodes = 0;
  bool ended = false;
};

// What connections are shown with; all may be unknown.
struct Membership {
  std::string name;
  std::optional<std::uint32_t> rank;
  std::uint32_t ranks = 0;  // 0: not known
  // "tp 3/8", "3/8", "tp"; empty where nothing is known.
  std::string brief() const;
  // " (rank 3 of 8 in tp)", " (rank 3 of 8)", " (in tp)", or empty.
  std::string in_words() const;
};

// Of a connection of that id and session.  Where no communicator has the session, what all of that
// id agree about: of a process that is several ranks of it not which one.
Membership membership(const std::vector<CommunicatorSample>& communicators, std::uint64_t id,
                      std::uint16_t session);

// The id of the living communicator with the most ranks, which all ranks of a job have in common:
// the least id where several have as many.  0 where none is known.
std::uint64_t largest(const std::vector<CommunicatorSample>& communicators);

}  // namespace twinpath::tools
