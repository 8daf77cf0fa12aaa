#pragma once
// What counters say about a stretch of time: a row for each peer and direction of each process, and
// who holds it up.  Pure.
#include <optional>
#include <string>
#include <vector>

#include "tools/counters/nics.h"
#include "tools/counters/view.h"

namespace twinpath::tools {

// All connections of one process in one direction with one peer, over the same device and by the
// same path, of communicators that have the same name and in which it is the same rank.
struct PeerRow {
  std::size_t process = 0;  // index into the samples
  counters::Role role = counters::Role::sender;
  std::string peer;  // "node07 pid 42 GPU1"
  std::string peer_host, peer_gpu, gpu, device, path, reason;
  std::uint32_t peer_pid = 0;
  Membership member;    // `ranks` 0 where they differ
  int connections = 0;  // open
  int lost = 0;
  double bytes_per_s = 0, messages_per_s = 0;
  std::uint64_t bytes = 0, messages = 0, staged_bytes = 0, errors = 0;  // since they began
  // Times that connections went over to other ports (the plugin's failover), and how long they
  // stood still for that, since they began.
  std::uint64_t failovers = 0;
  double stopped_s = 0, longest_stop_s = 0;
  // Of the time of an open connection, 0 to 1, by cause; the whole since they began, in seconds.
  std::array<double, counters::kWaits> share{};
  std::array<double, counters::kWaits> waited_s{};
  std::uint64_t in_flight = 0;    // of those that ask in vain now
  double stalled_s = 0;           // the longest time in which nothing has moved, of those
  std::vector<RailSample> rails;  // of the stretch
  double waiting() const;         // sum of `share`
  counters::Wait main_wait() const;
};

// What the engine of a process's GPU did for kernels.
struct GinRow {
  std::size_t process = 0;                                     // index into the samples
  GinSample counts;                                            // since it began
  double operations_per_s = 0, doorbells_per_s = 0, busy = 0;  // of the stretch; busy 0 to 1
};

// Nanoseconds below which that part of the timed messages lies, to a power of two; 0 without any.
std::uint64_t quantile(const std::array<std::uint64_t, counters::kBuckets>& buckets, double part);
std::uint64_t timed(const RailSample& rail);

// Shares of a row's rails in the messages that are cut over them, 0 to 1; empty where none are.
std::vector<double> shares(const PeerRow& row);
// The same by the speeds of their ports; 0 of rails in reserve.  Empty where no speed is known.
std::vector<double> promised(const PeerRow& row, const ProcessSample& process);

struct Summary {
  std::vector<ProcessSample> processes;  // the later samples
  std::vector<PeerRow> rows;             // the longest waits first
  std::vector<GinRow> gin;
  double seconds = 0;           // of the stretch
  std::vector<NicChange> nics;  // all of the host
  struct Culprit {
    std::size_t row = 0;
    counters::Wait wait = counters::Wait::network;
    double share = 0;
    bool packets_lost = false;  // the rail's port says so
    std::string text;           // one line
  };
  // None: nobody waits for a tenth of the time, or those who do wait for each other alike.
  std::optional<Culprit> culprit;
  std::string first_line;  // the culprit's text, or why there is none
};

// From `before` to `after`.  A process, or a connection, that is only in the latter counts from its
// beginning; `before` empty: all do.
Summary summarize(const std::vector<ProcessSample>& before, std::vector<ProcessSample> after,
                  std::vector<NicChange> nics = {});
// Part of it: names the culprit and writes the first line.
void find_culprit(Summary& summary);

// The first rail of a row that gets less than half of what its port's speed beside the others'
// says.
struct SlowRail {
  std::string port;
  std::string gets;  // "gets 9% of each message, by its port's speed 50%"
};
std::optional<SlowRail> slow_rail(const PeerRow& row, const ProcessSample& process);
// A line for each row that has one.
std::vector<std::string> slow_rails(const Summary& summary);

// "node07 pid 42 GPU1" of a process that was looked at.
std::string name_of(const ProcessSample& process);

// What all processes of a job have in common, and no others: NCCL's id of their largest
// communicator; where the plugin was told of none (NCCL before 2.28), of the first connection's.
// 0 before there is one.
std::uint64_t job_of(const ProcessSample& process);

}  // namespace twinpath::tools
