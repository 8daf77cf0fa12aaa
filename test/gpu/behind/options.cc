#include "test/gpu/behind/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "test/gpu/behind/calls.h"
#include "tools/common/failure.h"
#include "tools/common/units.h"

namespace twinpath::behind {
namespace {

constexpr const char* kFooter =
    "Each case: an all-reduce is started and the call is made right behind it, without waiting;\n"
    "then the sums are checked, and what the call did.  A case that does not end within --limit "
    "is\n"
    "\"hung\": its processes are killed and the next cases get new ones.\n"
    "\n"
    "Layouts: threads (one process, a thread for each GPU), group (one process, one thread),\n"
    "processes (one for each GPU).  Ranks started by hand, one for each GPU:\n"
    "  behind --rank 0 --nranks 2 --id-file /tmp/id & behind --rank 1 --nranks 2 --id-file "
    "/tmp/id\n"
    "The file must not exist; rank 0 writes it.\n"
    "\n"
    "Environment: --plugin sets NCCL_NET_PLUGIN; all of it goes to the ranks as it is.\n"
    "\n"
    "Examples:\n"
    "  behind --layout processes\n"
    "  behind --case malloc-free,d2h-pageable --sizes 8m --rounds 200 --json\n"
    "\n"
    "Exit status: 0 all right, 1 a case hung, failed or had wrong data, 2 bad option, 3 no GPU or\n"
    "no NCCL.";

struct Text {
  std::string layouts = "all", calls = "all", sizes = "4,64k,8m", stream = "blocking",
              work = "all-reduce";
};

constexpr Layout kLayouts[] = {Layout::threads, Layout::group, Layout::processes};
constexpr const char* kWorks[] = {"all-reduce", "gin"};
constexpr const char* kStreams[] = {"blocking", "nonblocking", "legacy"};

[[noreturn]] void refuse(const std::string& what) { throw tools::BadUsage(what); }

std::vector<Layout> parse_layouts(const std::string& text) {
  if (text == "all") return {std::begin(kLayouts), std::end(kLayouts)};
  std::vector<Layout> out;
  for (const std::string& word : CLI::detail::split(text, ',')) {
    const auto* found = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                     [&](Layout l) { return word == name_of(l); });
    if (found == std::end(kLayouts)) {
      refuse("--layout \"" + word + "\" is unknown; use all, or threads, group, processes");
    }
    out.push_back(*found);
  }
  return out;
}

std::vector<std::string> parse_calls(const std::string& text) {
  std::vector<std::string> out;
  if (text == "all") {
    for (const Call& call : all_calls()) out.emplace_back(call.name);
    return out;
  }
  for (const std::string& word : CLI::detail::split(text, ',')) {
    if (find_call(word) == nullptr) refuse("--case \"" + word + "\" is unknown; see --list");
    out.push_back(word);
  }
  return out;
}

void define(CLI::App& app, Options& out, Text& text) {
  app.footer(kFooter);
  app.add_option("--case,-c", text.calls, "calls to make, a list, or all [all]");
  app.add_option("--sizes,-s", text.sizes, "bytes of the all-reduce, a list [4,64k,8m]");
  app.add_option("--layout,-l", text.layouts, "a list of layouts, or all [all]");
  app.add_option("--rounds,-n", out.rounds, "rounds of each case [40]")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--ahead", out.ahead, "all-reduces in front of the call [1]")
      ->check(CLI::Range(1, 1000));
  app.add_option("--gpus,-g", out.gpus, "GPUs [all]")->check(CLI::Range(1, 64));
  app.add_option(
      "--stream", text.stream,
      "the all-reduce's stream: blocking (the default stream waits for it), nonblocking, "
      "or legacy (the default stream itself) [blocking]");
  app.add_option("--behind", text.work,
                 "all-reduce, or gin: the same by a kernel that puts through NCCL's GIN; not for "
                 "layout group [all-reduce]");
  app.add_option("--limit", out.limit_s, "seconds that a case may take [20]")
      ->check(CLI::Range(0.01, 1000000.0));
  app.add_option("--setup-limit", out.setup_limit_s, "seconds until NCCL is ready [90]")
      ->check(CLI::Range(0.01, 1000000.0));
  app.add_flag("--fresh", out.fresh, "new processes for each case");
  app.add_flag("--json", out.json, "a JSON line for each case on stdout; the table on stderr");
  app.add_flag("--list", out.list, "names the calls and ends");
  app.add_option("--nccl", out.nccl, "NCCL library [libnccl.so.2]");
  app.add_option("--plugin", out.plugin, "net plugin: sets NCCL_NET_PLUGIN");
  app.add_option("--rank", out.rank, "be this rank, and start nobody")->check(CLI::Range(0, 63));
  app.add_option("--nranks", out.ranks, "number of ranks, with --rank")->check(CLI::Range(1, 64));
  app.add_option("--id-file", out.id_file, "file in which rank 0 leaves NCCL's id, with --rank");
  // An empty group hides them from the help.
  app.add_flag("--count", out.count)->group("");
  app.add_option("--report-fd", out.report_fd)->group("");
  app.add_option("--exporter", out.exporter)->group("");
  app.add_option("--cases", out.cases_text)->group("");
  app.add_option("--child", out.child)->group("");
  app.set_version_flag("--version", TWINPATH_VERSION);
}

Case parse_case(const std::string& word) {
  const std::size_t at = word.find('@');
  const auto bytes =
      at == std::string::npos ? std::nullopt : tools::parse_bytes(word.substr(at + 1));
  if (!bytes || find_call(word.substr(0, at)) == nullptr) {
    refuse("--cases: \"" + word + "\" is not CALL@BYTES");
  }
  return {word.substr(0, at), *bytes};
}

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::threads:
      return "threads";
    case Layout::group:
      return "group";
    case Layout::processes:
      return "processes";
  }
  return "?";
}

std::string Case::text() const { return call + "@" + std::to_string(bytes); }

std::vector<Case> Options::cases() const {
  std::vector<Case> out;
  if (!cases_text.empty()) {
    for (const std::string& word : CLI::detail::split(cases_text, ',')) {
      out.push_back(parse_case(word));
    }
    return out;
  }
  for (const std::string& call : calls) {
    for (const std::size_t bytes : sizes) out.push_back({call, bytes});
  }
  return out;
}

bool parse_options(int argc, char** argv, Options& out, int& exit_code) {
  CLI::App app{"Calls of CUDA right behind an all-reduce of NCCL: do they end, are the sums right?",
               "behind"};
  Text text;
  define(app, out, text);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? kExitOk : kExitUsage;
    return false;
  }
  out.layouts = parse_layouts(text.layouts);
  out.calls = parse_calls(text.calls);
  std::string why;
  if (!tools::parse_byte_list(text.sizes, out.sizes, why)) refuse("--sizes: " + why);
  for (const std::size_t bytes : out.sizes) {
    if (bytes == 0 || bytes % 4 != 0)
      refuse("--sizes: " + std::to_string(bytes) +
             " is not a multiple of 4; the sums are of floats");
  }
  const auto* stream = std::find(std::begin(kStreams), std::end(kStreams), text.stream);
  if (stream == std::end(kStreams)) {
    refuse("--stream \"" + text.stream + "\" is unknown; use blocking, nonblocking or legacy");
  }
  out.stream = static_cast<StreamKind>(stream - std::begin(kStreams));
  const auto* work = std::find(std::begin(kWorks), std::end(kWorks), text.work);
  if (work == std::end(kWorks)) refuse("--behind \"" + text.work + "\": use all-reduce or gin");
  out.work = static_cast<Work>(work - std::begin(kWorks));
  // One thread cannot make windows for several ranks.
  if (out.work == Work::gin) std::erase(out.layouts, Layout::group);
  if (out.layouts.empty()) refuse("--behind gin does not go with --layout group alone");
  if (out.rank >= 0 && (out.ranks <= out.rank || out.id_file.empty())) {
    refuse("--rank needs --nranks (more than the rank) and --id-file, the same for all ranks");
  }
  if (out.rank >= 0 && app.count("--layout") == 0) out.layouts = {Layout::processes};
  return true;
}

std::vector<std::string> child_arguments(const Options& o, Layout layout,
                                         const std::vector<Case>& cases) {
  std::string list;
  for (const Case& c : cases) list += (list.empty() ? "" : ",") + c.text();
  std::vector<std::string> out = {"--cases",       list,
                                  "--layout",      name_of(layout),
                                  "--rounds",      std::to_string(o.rounds),
                                  "--ahead",       std::to_string(o.ahead),
                                  "--limit",       tools::fixed(o.limit_s, 3),
                                  "--setup-limit", tools::fixed(o.setup_limit_s, 3),
                                  "--gpus",        std::to_string(o.gpus),
                                  "--stream",      kStreams[static_cast<int>(o.stream)],
                                  "--behind",      kWorks[static_cast<int>(o.work)]};
  if (!o.nccl.empty()) out.insert(out.end(), {"--nccl", o.nccl});
  if (!o.plugin.empty()) out.insert(out.end(), {"--plugin", o.plugin});
  return out;
}

}  // namespace twinpath::behind
