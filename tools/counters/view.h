#pragma once
// What a reader takes from one process's page of counters (plugin/base/counters.h): plain values,
// copied at one moment.  The page is another program's, perhaps another user's when root looks:
// nothing in it is believed before it was checked.
//
// Threads: one at a time.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/counters.h"
#include "plugin/base/shared_memory.h"
#include "tools/counters/communicators.h"

namespace twinpath::tools {

struct RailSample {
  std::string port;
  bool standby = false;  // in reserve; there only if it has carried something
  std::uint64_t bytes = 0;
  std::uint64_t timed_ns = 0;
  std::uint32_t permille = 0;  // of messages that are cut over several rails; 0: none are
  std::array<std::uint64_t, counters::kBuckets> buckets{};
};

struct ConnectionSample {
  // Tells connections of a process apart, and a place's users one after another.
  std::uint64_t key = 0;
  counters::State state = counters::State::none;
  counters::Role role = counters::Role::sender;
  std::string peer_host, peer_device, peer_gpu, device, gpu, path, reason;
  std::uint32_t peer_pid = 0;
  std::uint64_t communicator = 0;
  std::uint16_t session = 0;
  Membership member;
  std::uint64_t messages = 0, staged_bytes = 0;
  std::uint64_t failovers = 0, stopped_ns = 0, longest_stop_ns = 0;
  // As of the last call in vain; they mean something only while such calls go on.
  std::int64_t looked_at = 0, since = 0;
  std::uint32_t in_flight = 0;
  std::optional<counters::Wait> waits_for;
  std::array<std::uint64_t, counters::kWaits> waited_ns{};
  std::array<std::uint64_t, counters::kStatuses> errors{};
  std::vector<RailSample> rails;

  std::uint64_t bytes() const;
  std::uint64_t waited() const;
};

struct PortSample {
  std::string name, device;
  std::uint32_t number = 0, speed_mbps = 0;
  counters::PortState state = counters::PortState::unknown;
  std::uint64_t went_down = 0, came_up = 0, changed_address = 0, failed = 0;
};

// Of queues that went over to another port.
struct MoveSample {
  explicit MoveSample(const counters::MoveCounts& of);
  MoveSample() = default;
  double stopped_s() const { return static_cast<double>(stopped_ns) * 1e-9; }
  double longest_s() const { return static_cast<double>(longest_ns) * 1e-9; }
  std::uint64_t moves = 0, stopped_ns = 0, longest_ns = 0;
};

// Of a GPU's queues that kernels fill.
struct GinSample {
  int gpu = -1;  // -1: CPU threads play it
  std::int64_t since = 0;
  std::uint64_t doorbells = 0, busy_ns = 0, failed_queues = 0, released = 0;
  MoveSample moves;
  std::array<std::uint64_t, counters::kGinOperations> operations{};
};

struct ProcessSample {
  int pid = 0;        // as the reader sees it
  int inner_pid = 0;  // as the process and its peers see it
  unsigned uid = 0;
  std::string host, plugin, program;
  std::int64_t taken_at = 0;  // CLOCK_MONOTONIC, ns; of a copy: when it was made
  std::int64_t started_at = 0;
  std::int64_t started_unix_ns = 0;
  std::uint64_t uncounted = 0;
  std::uint64_t registrations = 0, registered_bytes = 0, registration_hits = 0;
  std::uint64_t unnamed = 0;  // communicators that found no place for their names
  std::vector<PortSample> ports;
  std::vector<CommunicatorSample> communicators;
  std::vector<GinSample> gin;
  MoveSample rma;
  std::vector<ConnectionSample> connections;
};

class CounterView {
 public:
  // Of a live process; the descriptor is not needed afterwards.  Null and `why` for what is no page
  // of this version.
  static std::unique_ptr<CounterView> of_memory(int fd, std::string& why);
  // Of a copy that a process left behind.
  static std::unique_ptr<CounterView> of_file(const std::string& path, std::string& why);
  // `pid`, `uid` and `program` are left to the caller.
  ProcessSample read() const;
  // Of connections that were ever open: the most that read() gives.
  std::size_t places() const;
  int inner_pid() const { return static_cast<int>(process().pid); }

 private:
  CounterView() = default;
  bool check(std::string& why);
  const counters::Process& process() const {
    return *reinterpret_cast<const counters::Process*>(at_);
  }
  bool read(std::uint32_t index, const std::vector<PortSample>& ports, ConnectionSample& out) const;
  std::vector<CommunicatorSample> communicators() const;

  SharedMemory memory_;
  std::vector<std::uint64_t> copy_;  // words: numbers in it are aligned
  const std::byte* at_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace twinpath::tools
