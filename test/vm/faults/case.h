#pragma once
// A fault case: what it is given, and how it says what it found.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "test/vm/faults/exchange.h"
#include "test/vm/faults/network.h"

namespace twinpath::test {

// How long a case waits for something that should come, ms.  Emulated processors of a busy host
// crawl, and what fails takes long, not what works.
inline constexpr int kConnect = 20000;  // from fork to connected
inline constexpr int kMove = 15000;     // some messages
inline constexpr int kDetect = 10000;   // an error

// The machine's rails: what the sender's and the receiver's side own.
struct RailEnds {
  std::string rdma, netdev, address;
};
struct Topology {
  std::string name;  // "pair", "pair2", "hosts"
  std::vector<RailEnds> sender, receiver;
  std::string control = "lo";  // interface of the control connections
  // Of two hosts, the one of this machine; the other end is remote then.
  std::optional<Side> here;
  const RailEnds& of(Side s, std::size_t rail = 0) const {
    return (s == Side::sender ? sender : receiver)[rail];
  }
  std::vector<std::string> rdma_devices() const;
  Topology turned() const;  // the sender where the receiver was
};

class Case {
 public:
  explicit Case(const Topology& machine) : topology(machine) {}

  const Topology& topology;

  // A limit above, for this machine: two hosts on one emulator have less of it each.
  int limit(int ms) const { return topology.here ? 3 * ms : ms; }

  // A plan for one end on its first rail with a transport timeout of 17 ms (0.27 s between hosts)
  // and 6 retries: a fault that stays ends the connection soon.
  EndPlan plan(Side s) const;
  // The same with NCCL's 7 retries, which soft-RoCE takes for ever; for faults to be survived.  Its
  // 6 would not do: each loss inside one message takes one, and only a whole message gives them
  // back.
  EndPlan patient_plan(Side s) const;
  EndPlan plan_all_rails(Side s) const;
  // The settings as they are when nobody sets any: 7 retries of 4.3 s.
  EndPlan default_plan(Side s) const;
  // One message under way at a time, for links of our own that go down: where a write waits for its
  // acknowledgement and a later one cannot be sent, soft-RoCE (Linux 6.1) stops its retry timer and
  // never completes the first.
  static EndPlan one_by_one(EndPlan p) {
    p.window = 1;
    return p;
  }

  // Fails the case, and goes on.
  bool expect(bool condition, const std::string& otherwise);
  // Adds to the line of a case that passes.
  void note(const std::string& text);
  // How long an end took to see what happened at `since`.
  void detected(Exchange& x, Side s, std::int64_t since);
  // Both ends done, verified; notes how much, and the longest pause.
  void expect_all_right(Exchange& x, int limit_ms);
  // Adds what an end said to the messages that can be printed.
  void said(Exchange& x, Side s);
  // That end failed within the limit, and its message names both ends' device, port, GID, the
  // peer's process and one of the remedies.
  void expect_error(Exchange& x, Side s, int limit_ms, std::int64_t since,
                    std::initializer_list<const char*> remedies);
  // A new connection after the fault, of new processes: nothing stays behind.
  void expect_fresh_connection();
  // And one of the processes that have lived through it.
  void expect_reconnection(Exchange& x);
  // What another case found, of the same run.
  void take(const Case& other);
  // The driver's counter has grown by `least`; notes by how much.
  void expect_hit(const Counter& counter, long long least = 1);

  const std::vector<std::string>& problems() const { return problems_; }
  const std::string& notes() const { return notes_; }
  double detect_ms() const { return detect_ms_; }  // < 0: nothing was to be detected
  double pause_ms() const { return pause_ms_; }
  std::uint64_t messages() const { return messages_; }
  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  std::vector<std::string> problems_, reasons_;
  std::string notes_;
  double detect_ms_ = -1, pause_ms_ = -1;
  std::uint64_t messages_ = 0;
};

struct CaseInfo {
  const char* name;
  const char* about;
  void (*run)(Case& c);
  std::size_t rails = 1;
  bool hosts = false;      // needs two
  bool only_long = false;  // with RXE_LONG, or by its name
};
const std::vector<CaseInfo>& packet_cases();
const std::vector<CaseInfo>& link_cases();
const std::vector<CaseInfo>& setup_cases();
const std::vector<CaseInfo>& process_cases();
const std::vector<CaseInfo>& rail_cases();
const std::vector<CaseInfo>& outage_cases();
const std::vector<CaseInfo>& host_cases();

// Sizes that cross every boundary: inline, one packet, several, many.
inline const std::vector<std::size_t> kMixedSizes{8, 64, 4096, 65536, 1000, 16384, 262144, 8};

}  // namespace twinpath::test
