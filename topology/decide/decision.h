#pragma once
// Which way data goes between two ends, and why: a pure function of their placement records.
//
// Both ends hold both records, so both compute the same: decide(a, b).send is decide(b, a).recv.
// The directions are judged apart and may differ.  Total: any two records give an answer.  More
// capabilities never give a lesser mode.
//
// No allocation, no branch on anything but the records.  Threads: any.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/decide/record.h"

namespace twinpath {

// Least to best.
enum class Mode : std::uint8_t {
  proxy_stage,  // the CPU posts, GPU data passes through host memory at one end or both
  proxy_gdr,    // the CPU posts, the HCAs reach GPU memory
  gda_cpu,      // the GPU writes work requests, a CPU thread rings
  gda,          // the GPU writes and rings
};
inline constexpr int kModes = 4;
std::string_view name_of(Mode mode);  // "PROXY-STAGE", "PROXY-GDR", "GDA-P", "GDA"

enum class Pattern : std::uint8_t { latency, bulk, mixed };

// What the connection is for; both ends of one know it.
struct Use {
  Pattern pattern = Pattern::bulk;
  bool device_initiated = false;  // kernels start the transfers (GIN), not the host
};

struct QueuePlacement {
  bool sq_on_gpu = false, cq_on_gpu = false, dbr_on_gpu = false;
  friend bool operator==(const QueuePlacement&, const QueuePlacement&) = default;
};

// What one end does with GPU memory: messages up to `direct_max` bytes directly, longer ones
// through host memory.  0: all through host memory.
struct EndPlan {
  std::uint64_t direct_max = 0;
  Rule rule = Rule::none;
  Reason reason = Reason::none;
  bool direct(std::uint64_t bytes) const { return direct_max != 0 && bytes <= direct_max; }
  friend bool operator==(const EndPlan&, const EndPlan&) = default;
};

struct Direction {
  Mode mode = Mode::proxy_stage;
  EndPlan source;   // at the sender
  EndPlan landing;  // at the receiver
  Rule issue_rule = Rule::none;
  Reason issue_reason = Reason::none;
  QueuePlacement queues;         // of the sender, for GPU-issued work
  bool flush = false;            // the receiver must flush after direct data
  bool signal_by_write = false;  // no atomics: I6
  // The next better mode and what it needs; `need` is none when there is none better.
  Mode next = Mode::proxy_stage;
  Reason need = Reason::none;
  bool need_at_receiver = false;
  bool wish_unmet = false;     // a better mode was asked for than can be had
  bool wish_conflict = false;  // the ends asked for different ones
  friend bool operator==(const Direction&, const Direction&) = default;
};

struct Decision {
  Direction send;  // local to remote
  Direction recv;  // remote to local
  friend bool operator==(const Decision&, const Decision&) = default;
};

Decision decide(const PlacementRecord& local, const PlacementRecord& remote, Use use);
Direction decide_direction(const PlacementRecord& from, const PlacementRecord& to, Use use);

// What this version does of a direction.  A decision says what the hardware allows; queues that a
// real adapter itself reads have run on none yet, so they are used only where both ends ask for
// them (TWINPATH_MODE), and a GIN window is never staged.
struct Executed {
  std::optional<Mode> mode;      // nullopt: nothing
  Reason reason = Reason::none;  // why it is not the decided mode; none: it is
  friend bool operator==(const Executed&, const Executed&) = default;
};
// `software`: both ends are soft HCAs, whose part our own thread takes.
Executed executed(const Direction& decided, const PlacementRecord& from, const PlacementRecord& to,
                  Use use, bool software);
// The best mode that this version takes for a use.  `asked`: both ends ask for gda or gda-cpu.
Mode best_built(Use use, bool software, bool asked);
bool gpu_issue_asked(const PlacementRecord& from, const PlacementRecord& to);

// --- for people; these allocate --------------------------------------------------------

struct EndNames {
  std::string host;  // "node07"
  std::string gpu;   // "GPU0"
  std::string hca;   // "mlx5_0"
};

// The one line of a peer's decision in the log.
std::string summary(const Decision& decision, const PlacementRecord& local,
                    const PlacementRecord& remote, const EndNames& here, const EndNames& there);

struct Explanation {
  std::string part;    // "source", "landing", "issue", "queues", "flush", "signals", "next", "wish"
  std::string result;  // "direct", "staged", "direct up to 64 KiB", "GPU rings"
  std::string rule;    // "W3"; empty where no row of the table applies
  std::string code;    // "READ_UNPROVEN"
  std::string sentence;  // of the reason
  std::string remedy;    // empty: nothing to do
  std::string where;     // host that it is about
};
// Every part of a direction with its reason.
std::vector<Explanation> explain(const Direction& direction, const PlacementRecord& from,
                                 const PlacementRecord& to, const EndNames& sender,
                                 const EndNames& receiver);

}  // namespace twinpath
