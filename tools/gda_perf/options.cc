#include "tools/gda_perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "plugin/base/version.h"
#include "tools/common/arguments.h"
#include "tools/common/net_plugin.h"
#include "tools/common/units.h"
#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

constexpr Test kTests[] = {Test::pingpong,  Test::putvalue, Test::signal, Test::putflush,
                           Test::counter,   Test::rate,     Test::bw,     Test::counters,
                           Test::wpingpong, Test::wsignal,  Test::get};
constexpr std::size_t kAll = 7;  // the first ones; the others by name only
constexpr std::size_t kLeastArea = std::size_t{32} << 20;

constexpr const char* kFooter =
    R"(Kernels drive NCCL's GIN device API, so that what is measured is the GIN plugin
which NCCL loaded.  Rank 2k works with rank 2k+1; one GPU works with itself,
from two kernels.
  pingpong  put + signal there and back, per size: one round trip
  putvalue  the same with an 8-byte value in place of a buffer
  signal    the same without data
  putflush  put, then flush: until the source may be used again
  counter   put with a counter, until the counter shows it
  rate      8-byte puts by several blocks, then a flush; without and with
            signals
  bw        many puts, a signal on the last of each block, until its answer is
            back
Not among "all":
  counters  as rate, with a signal and a counter for each put; both must be
            exact
  wpingpong, wsignal  pingpong and signal with a word of the window as the
                      signal
  get       reads the peer's memory, then flushes: until the data may be used;
            what is read is another each time, and is compared
  The last three are there where the program was built with NCCL 2.30.7 or
  newer.

Sizes are bytes (multiples of 8), with k, m or g for powers of 1024.  Times are
microseconds taken on the GPU, bandwidths 1e9 bytes per second, summed over
pairs.  CPU is the number of cores that this whole process kept busy meanwhile.

Environment: NCCL_NET_PLUGIN is set to the plugin, NCCL_NVLS_ENABLE=0 where it
is not set.

Examples:
  TWINPATH_FABRIC=soft gda_perf
  gda_perf --test pingpong,signal --max 4k --iters 10000
  gda_perf -g 4 --test bw --min 1m --max 256m --bw-blocks 1,2,4 --json bw.json
  gda_perf --plugin /opt/other/libnccl-net.so --test rate --plot rate.svg

Exit status: 0 all right, 1 wrong data, 2 bad option, 3 no GPU or NCCL, 4 an
operation failed or timed out.)";

struct Text {
  std::string tests = "all", min, max, volume = "512m";
};

[[noreturn]] void refuse(const std::string& what) { throw ToolError(kExitUsage, what); }

std::size_t bytes_of(const char* option, const std::string& text) {
  const auto value = tools::parse_bytes(text);
  if (!value || *value == 0 || *value % 8 != 0) {
    refuse(std::string(option) + " \"" + text +
           "\" is not a size in multiples of 8; use for example 8, 64k or 256m");
  }
  return *value;
}

std::vector<Test> parse_tests(const std::string& text) {
  if (text == "all") return {std::begin(kTests), std::begin(kTests) + kAll};
  std::vector<Test> out;
  for (const std::string& word : CLI::detail::split(text, ',')) {
    const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                     [&](Test t) { return word == name_of(t); });
    if (found == std::end(kTests)) {
      refuse("--test \"" + word + "\" is unknown; use all, or a list of pingpong putvalue signal " +
             "putflush counter rate bw counters wpingpong wsignal get");
    }
    out.push_back(*found);
  }
  return out;
}

void define(CLI::App& app, Options& out, Text& text) {
  tools::set_form(app);
  app.footer(kFooter);
  app.add_option("--test,-t", text.tests, "list of tests, or all [all]");
  app.add_option("--gpus,-g", out.gpus, "GPUs: 1 or an even number [2, or 1 where there is one]")
      ->check(tools::is_whole(1, 64));
  app.add_option("--min,-b", text.min, "smallest message [8; bw 4k]");
  app.add_option("--max,-e", text.max, "largest message [64k; bw 256m]");
  app.add_option("--factor,-f", out.factor, "from one size to the next [4]")
      ->check(tools::is_whole(2, 1 << 20));
  app.add_option("--iters,-n", out.iterations,
                 "timed operations per line; the rate test posts 32 times as many [2000]")
      ->check(tools::is_whole(1, 10000000));
  app.add_option("--warmup,-w", out.warmup, "untimed operations before them [200]")
      ->check(tools::is_whole(0, 10000000));
  app.add_option("--blocks", out.blocks, "rate, counters: list of block counts [1,2,4,8,16,32]")
      ->delimiter(',')
      ->check(tools::is_whole(1, kMaxBlocks));
  app.add_option("--bw-blocks", out.bw_blocks, "bw: list of block counts [1,4]")
      ->delimiter(',')
      ->check(tools::is_whole(1, kMaxBlocks));
  app.add_option("--contexts", out.contexts,
                 "GIN contexts to ask for; blocks use up to four of them, NCCL may give fewer [4]")
      ->check(tools::is_whole(1, 1024));
  app.add_option("--communicators", out.communicators,
                 "communicators of the same GPUs, all at work at once [1]")
      ->check(tools::is_whole(1, 16));
  app.add_option("--window", out.window, "bw: places that messages go round over, at most [64]")
      ->check(tools::is_whole(1, 1 << 20));
  app.add_option("--volume", text.volume, "bw: bytes of one repetition, about [512m]");
  app.add_option("--repetitions", out.repetitions, "bw: timed repetitions [5]")
      ->check(tools::is_whole(1, 100000));
  app.add_option("--json", out.json_file, "one JSON object, into FILE or in place of the table")
      ->expected(0, 1);
  app.add_option("--plot", out.plot, "FILE.svg: the results as a picture")
      ->check(tools::ends_in(".svg"));
  app.add_option("--timeout", out.timeout_s, "seconds that one step may take [60]")
      ->check(tools::is_between(1, 1000000));
  app.add_option("--wait", out.wait_s, "seconds that a kernel waits for one signal [10]")
      ->check(tools::is_between(0.001, 1000000.0));
  app.add_option("--nccl", out.nccl, "NCCL library [libnccl.so.2]");
  app.add_option("--plugin", out.plugin,
                 "GIN plugin: a path, or the X of libnccl-net-X.so [$NCCL_NET_PLUGIN, else the one "
                 "built or installed with this program]; none: NCCL's own");
  app.set_version_flag("--version", std::string("gda_perf ") + built_from());
}

}  // namespace

const char* name_of(Test test) {
  switch (test) {
    case Test::pingpong:
      return "pingpong";
    case Test::putvalue:
      return "putvalue";
    case Test::signal:
      return "signal";
    case Test::putflush:
      return "putflush";
    case Test::counter:
      return "counter";
    case Test::rate:
      return "rate";
    case Test::bw:
      return "bw";
    case Test::counters:
      return "counters";
    case Test::wpingpong:
      return "wpingpong";
    case Test::wsignal:
      return "wsignal";
    case Test::get:
      return "get";
  }
  return "?";
}

std::vector<std::size_t> Options::sizes(Test test) const {
  if (test == Test::signal || test == Test::wsignal) return {0};
  if (test == Test::putvalue || test == Test::rate || test == Test::counters)
    return {kRateMessageBytes};
  const bool stream = test == Test::bw;
  std::size_t first = min_bytes != 0 ? min_bytes : stream ? 4096 : 8;
  std::size_t last = max_bytes != 0 ? max_bytes : std::size_t{stream ? 256u << 20 : 64u << 10};
  // One of the two given beyond the other's default: that size alone.
  if (min_bytes == 0) first = std::min(first, last);
  if (max_bytes == 0) last = std::max(first, last);
  auto out = tools::size_steps(first, last, factor);
  if (out.back() != last) out.push_back(last);
  return out;
}

std::size_t Options::area_bytes() const {
  std::size_t area = kLeastArea;
  for (const Test test : tests) area = std::max(area, sizes(test).back());
  // Windows are made of whole pages.
  return (area + 4095) / 4096 * 4096;
}

bool Options::window_signals() const {
  return std::any_of(tests.begin(), tests.end(),
                     [](Test t) { return t == Test::wpingpong || t == Test::wsignal; });
}

bool Options::newer_tests() const {
  return window_signals() || std::find(tests.begin(), tests.end(), Test::get) != tests.end();
}

std::size_t Options::points() const {
  std::size_t out = 0;
  for (const Test test : tests) {
    const std::size_t times = test == Test::rate       ? 2 * blocks.size()
                              : test == Test::counters ? blocks.size()
                              : test == Test::bw       ? 2 * bw_blocks.size()
                                                       : 1;
    out += times * sizes(test).size();
  }
  return out;
}

StreamPlan plan_stream(const Options& options, std::size_t bytes, int blocks) {
  const auto each = static_cast<std::uint64_t>(blocks);
  const std::uint64_t wanted = std::clamp<std::uint64_t>(options.volume / bytes, 2, 4096);
  StreamPlan plan;
  plan.messages = (wanted + each - 1) / each * each;
  const std::uint64_t room = std::max<std::uint64_t>(1, options.area_bytes() / bytes);
  plan.slots = std::min({room, std::uint64_t{options.window}, plan.messages});
  return plan;
}

std::uint64_t rate_messages(const Options& options, int blocks) {
  return std::max<std::uint64_t>(
      1, std::uint64_t{options.iterations} * 32 / static_cast<std::uint64_t>(blocks));
}

std::string plugin_for_nccl(const Options& options) {
  if (options.plugin == "none") return options.plugin;
  // As the user has set it: what that means, NCCL knows.
  if (options.plugin.empty() && std::getenv("NCCL_NET_PLUGIN") != nullptr) return {};
  return tools::find_plugin(options.plugin);
}

bool parse_options(int argc, char** argv, Options& out, int& exit_code) {
  CLI::App app{"Latency, rate and bandwidth of GPU-initiated networking through NCCL's GIN.",
               "gda_perf"};
  Text text;
  define(app, out, text);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? kExitOk : kExitUsage;
    return false;
  }
  out.json = app.count("--json") > 0;
  out.tests = parse_tests(text.tests);
  if (!text.min.empty()) out.min_bytes = bytes_of("--min", text.min);
  if (!text.max.empty()) out.max_bytes = bytes_of("--max", text.max);
  if (out.min_bytes != 0 && out.max_bytes != 0 && out.min_bytes > out.max_bytes) {
    refuse("--min " + text.min + " is more than --max " + text.max + "; exchange them");
  }
  out.volume = bytes_of("--volume", text.volume);
  if (out.gpus > 1 && out.gpus % 2 != 0) {
    refuse("--gpus " + std::to_string(out.gpus) +
           " leaves a GPU without a partner; use 1 or an even number");
  }
  return true;
}

}  // namespace twinpath::gda_perf
