// twinpath-topo: where GPUs and HCAs sit, which way data goes to each peer, and why.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/options.h"
#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/common/job_address.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/topo/archive.h"
#include "tools/topo/check.h"
#include "tools/topo/dump.h"
#include "tools/topo/hosts.h"
#include "tools/topo/job_facts.h"
#include "tools/topo/json.h"
#include "tools/topo/options.h"
#include "tools/topo/png.h"
#include "tools/topo/probe.h"
#include "tools/topo/svg.h"
#include "tools/topo/text.h"
#include "tools/topo/why.h"
#include "topology/model/soft_places.h"
#include "topology/read/nccl_xml.h"

namespace {

using namespace twinpath;
using namespace twinpath::tools;
using namespace twinpath::tools::topo;

void write_file(const std::string& path, const std::string& text) {
  if (const int error = write_output(path, text); error != 0)
    throw Failure(path + ": " + why_unwritable(error));
}

// Software adapters take the place that their configuration gives them.
void place_adapters(Machine& machine, const Config& config) {
  std::string why;
  if (!place_soft_hcas(machine, config, why)) throw Failure(why);
}

// Settings of the environment hold on this node only: a capture is judged by the defaults and by
// what the command line says.
Settings settings_for(const Options& o, const Input& input) {
  Settings s;
  if (input.live) s.config = read_config([](const char* name) { return std::getenv(name); });
  const bool given = !o.platform_file.empty();
  const std::string file = given ? o.platform_file : s.config.platform_file;
  if (!file.empty()) s.platform = PlatformFile::load(file);
  // A bad line is skipped and told; a file without a good one is not what was meant.
  if (s.platform.empty() && !s.platform.errors().empty())
    throw Failure((given ? "--platform-file " : "TWINPATH_PLATFORM_FILE=") + file + ": " +
                  s.platform.errors().front());
  s.ordered_gpus = input.ordered_gpus;
  return s;
}

Report load(const Options& o, Input& input, bool with_probes, ProbeRun& probes) {
  Settings settings = settings_for(o, input);
  if (input.live && settings.config.fabric == FabricChoice::soft)
    place_adapters(input.machine, settings.config);
  if (with_probes) {
    probes = probe_pairs(input, settings.config);
    settings.probes = probes.results;
  }
  Report report = make_report(input.machine, std::move(settings));
  if (input.live && (o.command == Command::check || o.command == Command::why))
    report.gdrcopy = gpu::gdrcopy_state();
  if (input.live && o.command == Command::check) {
    report.job = read_job_facts(report.settings.config);
    report.job->gdr_not_tried = probes.why_not;
    if (report.job->by_network) {
      report.settings.config.ib_subnet_aware = true;
      report.settings.config.ib_subnet_prefix = *report.job->by_network;
    }
  }
  return report;
}

void print(const Json& json) { std::printf("%s", json_text(json).c_str()); }

void print_matrix(const Options& o, const Report& report, const Report* peer, bool live) {
  const auto pairs = peer == nullptr ? std::vector<PeerPair>() : with_peer(report, *peer);
  if (!o.json) {
    std::printf("%s", matrix_text(report).c_str());
    if (peer != nullptr) std::printf("%s", peers_text(report, *peer, pairs).c_str());
    return;
  }
  Json all = report_json(report);
  if (peer != nullptr) all["peer"] = peers_json(*peer, pairs);
  if (live) all["circumstances"] = nlohmann::json(circumstances());
  print(all);
}

int explain_pair(const Options& o, const Report& report, const Report* peer) {
  std::string error;
  const auto gpu = find_gpu(report.machine, o.gpu, error);
  const auto hca = gpu ? find_hca(report.machine, o.hca, error) : std::nullopt;
  if (!gpu || !hca) throw Failure(error);
  const auto sections = why(report, *gpu, *hca, peer);
  if (o.json)
    print(why_json(sections));
  else
    std::printf("%s", why_text(sections).c_str());
  return 0;
}

// Prints what was found, and writes the archive that was asked for.
int tell(const Options& o, const Input& input, const Checks& checks,
         const std::vector<HostCard>& cards, const Json& more) {
  Findings found{checks_text(checks, o.strict), checks_json(checks, o.strict), cards};
  found.json.update(more);
  Anonymous hide;
  const char* user = std::getenv("USER");
  if (o.anonymous) hide_names(cards, user == nullptr ? "" : user, hide);
  const std::string text = o.json ? json_text(found.json) : found.text;
  std::printf("%s", (o.anonymous ? hide(text) : text).c_str());
  if (!o.archive.empty()) {
    auto dump = input.root.empty() ? std::vector<TarEntry>()
                                   : dump_entries(input.machine, input.root, false);
    write_tar(o.archive, archive_entries(found, std::move(dump), o.anonymous ? &hide : nullptr));
  }
  return checks.exit_code(o.strict);
}

int check_here(const Options& o, const Input& input, const Report& report) {
  const auto place = report.job ? find_place(o.rank, o.ignore_launcher) : std::nullopt;
  if (place) {
    const auto hosts = check_as_rank(o, *place, report);
    if (!hosts) return 0;
    return tell(o, input, hosts->checks, hosts->cards,
                {{"pairs", tries_json(hosts->cards, hosts->tries)}});
  }
  const Checks checks = check(report);
  std::vector<HostCard> cards;
  if (report.job) cards.push_back(make_card(report, checks));
  return tell(o, input, checks, cards, Json::object());
}

int write_dump(const Options& o, const Input& input) {
  if (input.root.empty())
    throw Failure(o.input.path + ": an XML file has no sysfs to dump; copy the file itself");
  const auto entries = dump_entries(input.machine, input.root, o.raw);
  write_tar(o.out, entries);
  std::printf("%s: %zu entries; replay with twinpath-topo --input %s\n", o.out.c_str(),
              entries.size(), o.out.c_str());
  if (input.machine.host.extended_config != true)
    std::printf("ACS registers were not readable: run as root to have them in the dump\n");
  return 0;
}

int run(Options o) {
  const bool several = !o.hosts.empty() || !o.rank.empty();
  if (several && !o.input.path.empty())
    throw Failure("--input is a captured machine; --hosts and --rank are of real ones");
  if (!o.rank.empty())  // wrong use ends it before anything is tried
    (void)job_address(parse_place(o.rank), o.rendezvous, {}, std::getenv);
  if (!o.hosts.empty()) return check_by_ssh(o);
  if (o.input.path.empty())
    for (const std::string& text : environment_complaints())
      std::fprintf(stderr, "twinpath-topo: %s\n", text.c_str());
  if (o.input.path.empty() && o.input.placement.empty()) {
    const char* file = std::getenv("NCCL_TOPO_FILE");
    if (file != nullptr) o.input.placement = file;
  }
  Input input = open_input(o.input);
  if (o.command == Command::dump) return write_dump(o, input);
  ProbeRun probes;
  const bool tries = o.command == Command::probe || (o.command == Command::check && input.live);
  const Report report = load(o, input, tries, probes);
  std::optional<Report> peer;
  if (!o.peer.empty()) {
    InputOptions from;
    from.option = "--peer";
    from.path = o.peer;
    from.hwloc = o.input.hwloc;
    Input other = open_input(from);
    ProbeRun none;
    peer = load(o, other, false, none);
  }
  const Report* other = peer ? &*peer : nullptr;
  if (!o.svg.empty()) write_file(o.svg, report_svg(report));
  if (!o.png.empty()) write_png(o.png, report_svg(report));
  if (!o.nccl_xml.empty()) write_file(o.nccl_xml, write_nccl_xml(report.machine));
  const bool quiet =
      !o.svg.empty() || !o.png.empty() || !o.nccl_xml.empty();  // a file was what was wanted
  switch (o.command) {
    case Command::why:
      return explain_pair(o, report, other);
    case Command::check:
      return check_here(o, input, report);
    case Command::tree:
      if (o.json)
        print(report_json(report));
      else
        std::printf("%s", tree_text(report).c_str());
      return 0;
    case Command::probe:
      if (o.json) {
        Json j = probe_json(report);
        j["not_tried"] = probes.why_not.empty() ? Json(nullptr) : Json(probes.why_not);
        print(j);
      } else {
        std::printf("%s", probe_text(report, probes).c_str());
      }
      return 0;
    case Command::dump:
    case Command::matrix:
      break;
  }
  if (!quiet || o.json) print_matrix(o, report, other, input.live);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_tool("twinpath-topo", kBadArguments, [&] {
    Options options;
    int exit_code = 0;
    return parse_options(argc, argv, options, exit_code) ? run(std::move(options)) : exit_code;
  });
}
