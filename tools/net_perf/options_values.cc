// What options mean, apart from how they are written; see options.h.
#include <algorithm>

#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/common/units.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

const std::vector<std::pair<std::string, Test>>& test_names() {
  static const std::vector<std::pair<std::string, Test>> names{
      {"latency", Test::latency}, {"bw", Test::bw},       {"bibw", Test::bibw},
      {"rate", Test::rate},       {"group", Test::group}, {"step", Test::step},
      {"conns", Test::conns},     {"solo", Test::solo},   {"callgrind", Test::callgrind}};
  return names;
}

const std::vector<std::pair<std::string, LoopKind>>& loop_names() {
  static const std::vector<std::pair<std::string, LoopKind>> names{{"window", LoopKind::window},
                                                                   {"one", LoopKind::one},
                                                                   {"group", LoopKind::group},
                                                                   {"poll", LoopKind::poll}};
  return names;
}

const char* test_name(Test t) {
  for (const auto& [name, test] : test_names())
    if (test == t) return name.c_str();
  return "?";
}

const char* loop_name(LoopKind k) {
  for (const auto& [name, loop] : loop_names())
    if (loop == k) return name.c_str();
  return "?";
}

std::size_t iterations(const Options& o, std::size_t size) {
  if (o.iters != 0) return o.iters;
  const std::size_t most = o.test == Test::rate ? 50000 : o.test == Test::latency ? 10000 : 5000;
  const std::size_t bytes = std::size_t{256} << 20;
  return std::clamp<std::size_t>(bytes / std::max<std::size_t>(size, 1), 20, most);
}

// As many workers as cores leave none for the plugin's own threads: yield now and then.
unsigned yield_interval(int busy) {
  const int cores = usable_cores();
  return busy > cores ? 1 : busy == cores ? 16 : 0;
}

void take_job(Options& o, const std::vector<int>& job) {
  const std::string ranks = std::to_string(job[0]);
  if (job[0] % 2 != 0)
    throw BadUsage("a job of " + ranks + " ranks: workers go in pairs; start an even number");
  if (o.test == Test::solo || o.test == Test::callgrind)
    throw BadUsage(std::string("--test ") + test_name(o.test) +
                   " is one thread of one process; start it without a launcher or with --no-mpi");
  if (o.threads || (o.processes_given && o.workers != job[0]))
    throw BadUsage("a job of " + ranks + " ranks has " + ranks +
                   " workers; leave out --threads and --processes");
  o.job = job;
  o.workers = job[0];
  if (!o.poll_chosen) o.yield_every = yield_interval(job[1]);
}

nlohmann::json options_json(const Options& o) {
  nlohmann::json j{{"plugin", o.plugin},
                   {"test", test_name(o.test)},
                   {"sizes", o.sizes},
                   {"iters", o.iters},
                   {"repeats", o.repeats},
                   {"window", o.window},
                   {"loop", loop_name(o.loop)},
                   {"group", o.group},
                   {"connections", o.connections},
                   {"workers", o.workers},
                   {"threads", o.threads},
                   {"devices", o.devices},
                   {"gpus", o.gpus},
                   {"verify", o.verify},
                   {"optional_recv", o.optional_recv},
                   {"yield_every", o.yield_every},
                   {"timeout_s", o.timeout_s}};
  if (!o.against.empty()) {
    j["against"] = o.against;
    j["rounds"] = o.rounds;
  }
  return j;
}

}  // namespace twinpath::tools
