#include "tools/info/counters.h"

#include <cinttypes>
#include <cstdio>

#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/counters/find.h"

namespace twinpath::tools {
namespace {

std::string seconds(double s) { return s < 0.0005 ? "-" : fixed(s, 3); }
std::string count(std::uint64_t n) { return n == 0 ? "-" : std::to_string(n); }

void print_process(const ProcessSample& p) {
  std::printf("\n%s%s%s, plugin %s\n", name_of(p).c_str(), p.program.empty() ? "" : " ",
              p.program.c_str(), p.plugin.c_str());
  std::printf("  registrations %" PRIu64 " of %" PRIu64 " bytes; %" PRIu64
              " served by earlier ones\n",
              p.registrations, p.registered_bytes, p.registration_hits);
  if (p.uncounted > 0)
    std::printf("  connections beyond those counted: %" PRIu64 "\n", p.uncounted);
  for (const PortSample& x : p.ports)
    std::printf("  port %s %u Mb/s %s; went down %" PRIu64 ", came up %" PRIu64
                ", changed its address %" PRIu64 ", device failed %" PRIu64 "\n",
                x.name.c_str(), x.speed_mbps, x.state == counters::PortState::down ? "down" : "up",
                x.went_down, x.came_up, x.changed_address, x.failed);
  for (const GinSample& g : p.gin) {
    std::printf("  kernels of %s: doorbells %" PRIu64,
                g.gpu < 0 ? "CPU threads" : ("GPU" + std::to_string(g.gpu)).c_str(), g.doorbells);
    for (std::size_t k = 0; k < counters::kGinOperations; ++k)
      if (g.operations[k] > 0)
        std::printf(", %s %" PRIu64, counters::kGinOperationNames[k], g.operations[k]);
    std::printf("; engine busy %s s, queues failed %" PRIu64 ", let go %" PRIu64
                ", failovers %" PRIu64 "\n",
                seconds(static_cast<double>(g.busy_ns) * 1e-9).c_str(), g.failed_queues, g.released,
                g.moves.moves);
  }
  if (p.rma.moves > 0) std::printf("  RMA: failovers %" PRIu64 "\n", p.rma.moves);
}

void print_rows(const Summary& s, std::size_t process) {
  std::vector<Table::Column> columns{{"", "", 0, true},
                                     {"peer", "", 0, true},
                                     {"as rank", "", 0, true},
                                     {"rail", "", 0, true},
                                     {"conns"},
                                     {"bytes"},
                                     {"messages"},
                                     {"staged"}};
  for (const char* wait : counters::kWaitNames) columns.push_back({wait, "s"});
  for (const char* more : {"errors", "lost", "failovers"}) columns.push_back({more});
  Table table(columns);
  for (const PeerRow& row : s.rows) {
    if (row.process != process) continue;
    std::vector<std::string> cells{row.role == counters::Role::sender ? "  to" : "  from",
                                   row.peer,
                                   row.member.brief().empty() ? "-" : row.member.brief(),
                                   row.device,
                                   std::to_string(row.connections),
                                   std::to_string(row.bytes),
                                   std::to_string(row.messages),
                                   count(row.staged_bytes)};
    for (const double waited : row.waited_s) cells.push_back(seconds(waited));
    cells.push_back(count(row.errors));
    cells.push_back(count(static_cast<std::uint64_t>(row.lost)));
    cells.push_back(count(row.failovers));
    table.add(std::move(cells));
  }
  table.print(stdout);
}

}  // namespace

Summary look_at_counters(const std::string& sysfs) {
  std::vector<std::string> notes;
  std::vector<ProcessSample> processes;
  read_processes(
      0, notes, [&](ProcessSample p) { processes.push_back(std::move(p)); }, kKeptLimits);
  for (const std::string& note : notes) std::fprintf(stderr, "twinpath-info: %s\n", note.c_str());
  return summarize({}, std::move(processes), nic_changes({}, nic_counters(sysfs)));
}

void print_counters(const Summary& s) {
  if (s.processes.empty())
    std::printf(
        "\nno process to look at: none of this user's has the plugin open with "
        "TWINPATH_COUNTERS=1\n");
  for (std::size_t i = 0; i < s.processes.size(); ++i) {
    print_process(s.processes[i]);
    print_rows(s, i);
  }
  bool any = false;
  for (const NicChange& n : s.nics) {
    if (n.counter.value == 0) continue;
    if (!any) std::printf("\nthe kernel's counters of ports, since the adapter's beginning\n");
    any = true;
    std::printf("  %s port %s %s %" PRIu64 "\n", n.counter.hca.c_str(), n.counter.port.c_str(),
                n.counter.name.c_str(), n.counter.value);
  }
}

}  // namespace twinpath::tools
