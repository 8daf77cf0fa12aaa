// vm-faults: faults of a real kernel's RDMA stack, really hit, against the transport.
//
// Runs as root in the virtual machine that the VM script sets up (topologies pair, pair2, hosts),
// and changes that machine's network.  One line a case, "cases: ..." at the end, status 0 when all
// passed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "test/vm/faults/case.h"
#include "test/vm/faults/remote_end.h"

namespace twinpath::test {
namespace {

// EX_TEMPFAIL: on other machines, please (test/vm/suite).
constexpr int kDeadLink = 75;

constexpr const char* kHelp =
    "usage: vm-faults [--list] [--json FILE] [--messages] [CASE...]\n"
    "       vm-faults --end PLAN   (for itself: an end on the other host)\n"
    "Runs the fault cases that fit the machine's topology ($RXE_TOPO), or those named.\n"
    "  --list      names of all cases\n"
    "  --json FILE append one JSON line a case\n"
    "  --messages  print what the plugin said\n"
    "RXE_LONG set: all cases between two hosts, outages of 60 s and stops of 30 s.\n"
    "Exit status: 0 all passed; 1 some failed; 75 a link between the two machines died by "
    "itself.\n";

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string number(double value) {
  if (value < 0) return "null";
  std::array<char, 32> text;
  (void)std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

bool find_topology(Topology& t) {
  const char* name = std::getenv("RXE_TOPO");
  t.name = name == nullptr ? "" : name;
  if (t.name == "pair") {
    t.sender = {{"rxe0", "a0", "10.77.0.1"}};
    t.receiver = {{"rxe1", "b0", "10.77.0.2"}};
  } else if (t.name == "pair2") {
    t.sender = {{"rxe0", "a0", "10.77.0.1"}, {"rxe1", "a1", "10.77.1.1"}};
    t.receiver = {{"rxe2", "b0", "10.77.0.2"}, {"rxe3", "b1", "10.77.1.2"}};
  } else if (t.name == "hosts") {  // host a, see test/vm/lib/guest.sh
    t.sender = {{"rxe0", "d0", "10.77.0.1"}};
    t.receiver = {{"rxe0", "d0", "10.77.0.2"}};
    t.control = "c0";
    t.here = Side::sender;
    if (!run_there("true", 60000)) return false;  // host b boots at its own pace
  } else {
    return false;
  }
  return wait_ports_active(t.rdma_devices());
}

std::vector<CaseInfo> all_cases() {
  std::vector<CaseInfo> all;
  for (const auto* list : {&packet_cases(), &link_cases(), &setup_cases(), &process_cases(),
                           &rail_cases(), &outage_cases(), &host_cases()})
    all.insert(all.end(), list->begin(), list->end());
  return all;
}

// Whether a case failed because soft-RoCE executed a finished write again (../README.md says how
// that comes), and the plugin ended the connection for it.  The sender's end has looked at what it
// posted: a message that we sent twice is none of the kernel's.  Chunks it cannot tell apart;
// those that the kernel sends again bring no bytes.
bool repeated_by_kernel(const Case& c) {
  bool named = false;
  for (const std::string& p : c.problems()) {
    if (p.find("wrong data: ") != std::string::npos || p.find(kPostedTwice) != std::string::npos)
      return false;
    named = named ||
            p.find("it sent one message a second time (immediate 0x") != std::string::npos ||
            (p.find(" a second time (immediate 0x") != std::string::npos &&
             p.find(", 0 bytes)") != std::string::npos);
  }
  return named;
}

// The address of a link between the two machines that carries nothing although no case cuts it now
// and the other machine lives.  That is the emulator's doing (../README.md), and shows nothing of
// the plugin.
std::string dead_link(const Topology& t) {
  if (!t.here || !run_there("true", kConnect)) return {};
  for (const std::string& address : {t.of(other(*t.here)).address, std::string("10.76.0.2")})
    if (!link_carries(address, kDetect)) return address;
  return {};
}

// What tells of a dead link where it ends.
constexpr const char* kInterfaces =
    "ip -s link show d0; ip neigh show dev d0; tc -s qdisc show dev d0; grep virtio "
    "/proc/interrupts";

class Runner {
 public:
  Runner(const Topology& topology, std::string json, bool messages)
      : topology_(topology), json_(std::move(json)), messages_(messages) {}

  // False: no further case can be run on these machines.
  bool run(const CaseInfo& info) {
    if (info.hosts != topology_.here.has_value()) {
      ++skipped_;
      say("skipped: " + std::string(info.name) + ": not for topology " + topology_.name);
      return true;
    }
    if (info.rails > topology_.sender.size()) {
      ++skipped_;
      say("skipped: " + std::string(info.name) + ": needs " + std::to_string(info.rails) +
          " rails, topology " + topology_.name + " has " + std::to_string(topology_.sender.size()));
      return true;
    }
    const std::int64_t begin = now_ns();
    std::optional<Case> attempt;
    for (int more = 2;; --more) {
      attempt.emplace(topology_);
      info.run(*attempt);
      if (more == 0 || !repeated_by_kernel(*attempt)) break;
      say("once more: " + std::string(info.name) + ": " + attempt->problems()[0]);
    }
    const Case& c = *attempt;
    const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
    const bool ok = c.problems().empty();
    if (const std::string dead = ok ? std::string() : dead_link(topology_); !dead.empty()) {
      say("the machines' link to " + dead + " is dead, and no case cuts it now: " + info.name +
          " showed nothing (" + c.problems()[0] + ")");
      std::string interfaces;
      (void)run_program({"sh", "-c", kInterfaces}, &interfaces);
      say("here: " + interfaces);
      (void)run_there(kInterfaces, kConnect, &interfaces);
      say("there: " + interfaces);
      return false;
    }
    ++(ok ? passed_ : failed_);
    std::string line = (ok ? "ok: " : "FAILED: ") + std::string(info.name);
    if (ok) {
      line += " (" + c.notes() + ")";
    } else {
      line += ": ";
      for (const std::string& p : c.problems()) line += (&p == &c.problems()[0] ? "" : "; ") + p;
    }
    say(line);
    if (messages_)
      for (const std::string& reason : c.reasons()) say("    " + reason);
    if (json_.empty()) return true;
    std::ofstream file(json_, std::ios::app);
    file << "{\"program\":\"vm-faults\",\"fabric\":" << quoted("rxe " + topology_.name)
         << ",\"result\":\"" << (ok ? "pass" : "fail") << "\",\"case\":" << quoted(info.name)
         << ",\"about\":" << quoted(info.about) << ",\"detect_ms\":" << number(c.detect_ms())
         << ",\"pause_ms\":" << number(c.pause_ms()) << ",\"messages\":" << c.messages()
         << ",\"seconds\":" << number(seconds) << ",\"details\":" << quoted(ok ? c.notes() : line)
         << "}\n";
    return true;
  }

  int end() const {
    std::printf("cases: %d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  static void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    (void)std::fflush(stdout);
  }

  const Topology& topology_;
  const std::string json_;
  const bool messages_;
  int passed_ = 0, failed_ = 0, skipped_ = 0;
};

int run(int argc, char** argv) {
  std::string json;
  bool messages = false;
  std::vector<std::string> names;
  const std::vector<CaseInfo> all = all_cases();
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (arg == "--list") {
      for (const CaseInfo& c : all) std::printf("%-20s %s\n", c.name, c.about);
      return 0;
    }
    if (arg == "--end" && i + 1 < argc) return serve_remote_end(argv[i + 1]);
    if (arg == "--messages") {
      messages = true;
    } else if (arg == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (arg[0] == '-') {
      std::fputs(kHelp, stderr);
      return 2;
    } else {
      names.push_back(arg);
    }
  }
  for (const std::string& name : names) {
    bool known = false;
    for (const CaseInfo& c : all) known = known || name == c.name;
    if (known) continue;
    std::fprintf(stderr, "there is no case %s, see --list\n", name.c_str());
    return 2;
  }
  Topology topology;
  if (::geteuid() != 0 || !find_topology(topology)) {
    std::fprintf(
        stderr,
        "vm-faults runs as root in the VM with RXE_TOPO=pair, pair2 or hosts and all ports up; "
        "here it is '%s'\n",
        topology.name.c_str());
    return 2;
  }
  Runner runner(topology, json, messages);
  for (const CaseInfo& c : all) {
    bool wanted = names.empty() && c.rails == topology.sender.size() &&
                  c.hosts == topology.here.has_value() &&
                  (!c.only_long || std::getenv("RXE_LONG") != nullptr);
    for (const std::string& name : names) wanted = wanted || name == c.name;
    if (wanted && !runner.run(c)) return kDeadLink;
  }
  return runner.end();
}

}  // namespace
}  // namespace twinpath::test

int main(int argc, char** argv) { return twinpath::test::run(argc, argv); }
