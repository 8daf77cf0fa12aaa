#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/counters/show.h"

namespace twinpath::tools {

using counters::Wait;

namespace {

constexpr std::array<const char*, counters::kWaits> kWords{
    "peer's clear-to-send", "peer's data", "network", "flush", "GPU copy", "free slots"};

std::string time_text(double s) {
  if (s <= 0) return "-";
  if (s < 1e-3) return fixed(s * 1e6, 0) + " us";
  if (s < 1) return fixed(s * 1e3, 0) + " ms";
  return fixed(s, 1) + " s";
}

std::string rate_text(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fixed(bytes_per_s * 1e-9, 2) + " G";
  if (bytes_per_s >= 1e6) return fixed(bytes_per_s * 1e-6, 1) + " M";
  if (bytes_per_s >= 1e3) return fixed(bytes_per_s * 1e-3, 1) + " k";
  return fixed(bytes_per_s, 0);
}

std::string rails_text(const PeerRow& row) {
  std::string out;
  for (const RailSample& r : row.rails) out += (out.empty() ? "" : "+") + r.port;
  std::string parts;
  for (const double share : shares(row))
    parts += (parts.empty() ? "" : ":") + fixed(100 * share, 0);
  if (!parts.empty()) out += " " + parts;
  return out.empty() ? row.device : out;
}

// Of all rails: where a quantile lies.
std::string quantile_text(const PeerRow& row, double part) {
  std::array<std::uint64_t, counters::kBuckets> all{};
  for (const RailSample& r : row.rails)
    for (std::size_t b = 0; b < all.size(); ++b) all[b] += r.buckets[b];
  return time_text(static_cast<double>(quantile(all, part)) * 1e-9);
}

// What the kernel has counted in the stretch at ports that these processes have.
void print_nics(std::FILE* out, const Summary& s) {
  std::map<std::string, std::string> ports;
  for (const NicChange& n : s.nics) {
    const NicCounter& c = n.counter;
    const bool ours = std::any_of(s.processes.begin(), s.processes.end(), [&](const auto& p) {
      return std::any_of(p.ports.begin(), p.ports.end(), [&](const PortSample& x) {
        return x.device == c.hca && std::to_string(x.number) == c.port;
      });
    });
    if (n.grown == 0 || !ours || c.trouble == NicTrouble::congestion) continue;
    std::string& line = ports[c.hca + " port " + c.port];
    line += (line.empty() ? "" : ", ") + c.name + " " + std::to_string(n.grown);
  }
  for (const auto& [port, line] : ports)
    std::fprintf(out, "%s counted in %.1f s: %s\n", port.c_str(), s.seconds, line.c_str());
}

std::string gpu_text(const GinSample& g) {
  return g.gpu < 0 ? "CPU threads" : "GPU" + std::to_string(g.gpu);
}

std::string moves_text(const MoveSample& m) {
  return std::to_string(m.moves) + " failovers, the longest " + time_text(m.longest_s());
}

// Only of processes whose kernels have used their queues, and of those whose puts went elsewhere.
void print_one_sided(std::FILE* out, const Summary& s) {
  for (const GinRow& g : s.gin) {
    if (g.counts.doorbells == 0 && g.counts.failed_queues == 0) continue;
    std::fprintf(out, "kernels of %s on %s: %s work requests/s, %s doorbells/s; engine busy %s%%",
                 name_of(s.processes[g.process]).c_str(), gpu_text(g.counts).c_str(),
                 rate_text(g.operations_per_s).c_str(), rate_text(g.doorbells_per_s).c_str(),
                 fixed(100 * g.busy, 0).c_str());
    if (g.counts.failed_queues > 0)
      std::fprintf(out, "; %llu queues failed, %llu let go",
                   static_cast<unsigned long long>(g.counts.failed_queues),
                   static_cast<unsigned long long>(g.counts.released));
    if (g.counts.moves.moves > 0) std::fprintf(out, "; %s", moves_text(g.counts.moves).c_str());
    std::fprintf(out, "\n");
  }
  for (const ProcessSample& p : s.processes)
    if (p.rma.moves > 0)
      std::fprintf(out, "RMA of %s: %s\n", name_of(p).c_str(), moves_text(p.rma).c_str());
}

// What `write` prints, in lines of at most `columns` (0: no limit).
std::vector<std::string> lines_of(std::size_t columns,
                                  const std::function<void(std::FILE*)>& write) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const memory = open_memstream(&text, &bytes);
  if (memory == nullptr) return {};
  write(memory);
  std::fclose(memory);
  std::vector<std::string> out;
  std::istringstream in(std::string(text, bytes));
  std::free(text);
  for (std::string line; std::getline(in, line);)
    out.push_back(columns == 0 ? line : line.substr(0, columns));
  return out;
}

// Between the first line and the table.
void print_notes(std::FILE* out, const Summary& s) {
  for (const ProcessSample& p : s.processes)
    for (const PortSample& port : p.ports)
      if (port.state == counters::PortState::down)
        std::fprintf(out, "port %s of pid %d is down\n", port.name.c_str(), p.pid);
  for (const std::string& line : slow_rails(s)) std::fprintf(out, "%s\n", line.c_str());
  print_nics(out, s);
  print_one_sided(out, s);
}

// Of a screen's lines: how many the notes and the rows get.  The first line is never pushed out,
// the last line is the cursor's.
struct Room {
  std::size_t notes, rows;
};
Room room_for(std::size_t lines, std::size_t first, std::size_t notes, std::size_t rows) {
  if (lines == 0) return {notes, rows};
  constexpr std::size_t kHeading = 2;
  const std::size_t left = lines > first + 1 ? lines - first - 1 : 0;
  const std::size_t kept = std::min(notes, left / 3);
  const std::size_t below = left - kept;
  if (below >= kHeading + rows) return {kept, rows};
  return {kept, below > kHeading + 1 ? below - kHeading - 1 : 0};  // and a line for "more rows"
}

Table table_of(const Summary& s, std::size_t most) {
  // Of programs that told no names there is nothing to show.
  const bool named = std::any_of(s.rows.begin(), s.rows.end(),
                                 [](const PeerRow& row) { return !row.member.brief().empty(); });
  // On a narrow screen who waits for whom and why stays longest.
  std::vector<Table::Column> columns{{"pid"},
                                     {"GPU", "", 0, true, 5},
                                     {"", "", 0, true},
                                     {"peer", "", 0, true},
                                     {"rail", "", 0, true, 2},
                                     {"path", "", 0, true, 8},
                                     {"conns", "", 0, false, 9},
                                     {"B/s", "", 0, false, 3},
                                     {"msg/s", "", 0, false, 7},
                                     {"waits", "%"},
                                     {"mostly for", "", 0, true},
                                     {"asked", "", 0, false, 10},
                                     {"stalled", "", 0, false, 1},
                                     {"p50", "<=", 0, false, 11},
                                     {"p99", "<=", 0, false, 6},
                                     {"errors", "", 0, false, 4},
                                     {"failovers", "", 0, false, 12}};
  if (named) columns.insert(columns.begin() + 2, {"as rank", "", 0, true, 5});
  Table table(columns);
  std::size_t shown = 0;
  for (const PeerRow& row : s.rows) {
    if (shown++ == most) break;
    const bool waits = row.waiting() >= 0.005;
    std::vector<std::string> cells{std::to_string(s.processes[row.process].pid),
                                   row.gpu.empty() ? "-" : row.gpu,
                                   row.role == counters::Role::sender ? "to" : "from",
                                   row.peer,
                                   rails_text(row),
                                   row.path,
                                   std::to_string(row.connections) + (row.lost > 0 ? " lost" : ""),
                                   rate_text(row.bytes_per_s),
                                   rate_text(row.messages_per_s),
                                   fixed(100 * row.waiting(), 0),
                                   waits ? kWords[static_cast<std::size_t>(row.main_wait())] : "-",
                                   row.in_flight == 0 ? "-" : std::to_string(row.in_flight),
                                   time_text(row.stalled_s),
                                   quantile_text(row, 0.5),
                                   quantile_text(row, 0.99),
                                   row.errors == 0 ? "-" : std::to_string(row.errors),
                                   row.failovers == 0 ? "-" : std::to_string(row.failovers)};
    if (named)
      cells.insert(cells.begin() + 2, row.member.brief().empty() ? "-" : row.member.brief());
    table.add(std::move(cells));
  }
  return table;
}

}  // namespace

void print_summary(std::FILE* out, const Summary& s, std::size_t most, const Screen& screen) {
  if (s.processes.empty()) {
    std::fprintf(out,
                 "no process to look at: none of this user's has the plugin open with "
                 "TWINPATH_COUNTERS=1\n");
    return;
  }
  const auto first = wrapped_lines(s.first_line, screen.columns);
  const auto notes = lines_of(screen.columns, [&](std::FILE* f) { print_notes(f, s); });
  const std::size_t wanted = most == 0 ? s.rows.size() : std::min(most, s.rows.size());
  const Room room = room_for(screen.lines, first.size(), notes.size(), wanted);
  for (const std::string& line : first) std::fprintf(out, "%s\n", line.c_str());
  for (std::size_t i = 0; i < room.notes; ++i) std::fprintf(out, "%s\n", notes[i].c_str());
  Table table = table_of(s, room.rows);
  table.fit(screen.columns);
  const auto below = lines_of(screen.columns, [&](std::FILE* f) {
    table.print(f);
    if (room.rows < s.rows.size())
      std::fprintf(f, "%zu more rows (%s)\n", s.rows.size() - room.rows,
                   room.rows < wanted ? "the screen has no more lines" : "--rows 0 shows all");
  });
  for (const std::string& line : below) std::fprintf(out, "%s\n", line.c_str());
}

}  // namespace twinpath::tools
