#include "tools/net_perf/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "plugin/base/clock.h"
#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/common/plot.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/net_perf/interrupt.h"
#include "tools/net_perf/plots.h"

namespace twinpath::tools {
namespace {

using nlohmann::json;

struct Figure {
  const char* key;
  const char* title;
  bool less_is_better;
};

std::vector<Figure> figures_of(Test test) {
  const Figure cpu{"cpu_us_per_message", "CPU/message us", true};
  switch (test) {
    case Test::latency:
      return {{"median_us", "median us", true}, {"p99_us", "p99 us", true}, cpu};
    case Test::step:
      return {{"median_us_per_step", "us/step", true}, cpu};
    case Test::conns:
      return {{"open_us_each", "open us each", true}};
    case Test::rate:
    case Test::group:
      return {{"median_mmessages_per_s", "Mmsg/s", false}, cpu};
    default:
      return {{"median_gbytes_per_s", "GB/s", false}, cpu};
  }
}

json spread(const std::vector<double>& values) {
  const Statistics s = summarize(values);
  return {{"median", s.median}, {"least", s.min}, {"largest", s.max}};
}

std::string one_in(double chance) { return "1 in " + fixed(std::floor(1 / chance + 1e-9), 0); }

json compare(const Figure& figure, std::size_t row, std::size_t rounds,
             const std::vector<json>& mine, const std::vector<json>& others) {
  std::vector<double> first, second, ratios;
  json pairs = json::array();
  double wrong = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    const json &a = mine[i][row], &b = others[i][row];
    const double x = a[figure.key].get<double>(), y = b[figure.key].get<double>();
    first.push_back(x);
    second.push_back(y);
    const double over = figure.less_is_better ? x : y, under = figure.less_is_better ? y : x;
    ratios.push_back(over > 0 ? under / over : 1);  // too little to be measured: no round of either
    pairs.push_back({x, y});
    wrong += a["wrong"].get<double>() + b["wrong"].get<double>();
  }
  const Verdict found = verdict(ratios);
  const char* by = mine[0][row].contains("size") ? "size" : "connections";
  return {{by, mine[0][row][by]},  {"figure", figure.key},    {"title", figure.title},
          {"this", spread(first)}, {"other", spread(second)}, {"ratio", spread(ratios)},
          {"verdict", found.text}, {"chance", found.chance},  {"rounds", std::move(pairs)},
          {"wrong", wrong}};
}

// All that the turns of one plugin gave.
struct Side {
  json plugin = json::object();
  std::vector<json> rows;  // by round
};

struct Outcome {
  Side mine, other;
  std::vector<std::string> hosts, wrong_details;
  std::string failure;
  int interrupted = 0;  // by this signal
};

void print_table(const json& rows) {
  Table t({{"size", "bytes", 8},
           {.title = "figure", .width = 14, .left = true},
           {"this"},
           {"other"},
           {"ratio"},
           {"least"},
           {"largest"},
           {.title = "this is", .width = 14, .left = true},
           {"by chance"},
           {"wrong"}});
  const auto cell = [](const json& j, const char* key, int digits) {
    return fixed(j[key].get<double>(), digits);
  };
  for (const json& r : rows)
    t.add({r.contains("size") ? format_bytes(r["size"].get<std::size_t>())
                              : cell(r, "connections", 0) + " conns",
           r["title"].get<std::string>(), cell(r["this"], "median", 3),
           cell(r["other"], "median", 3), cell(r["ratio"], "median", 3),
           cell(r["ratio"], "least", 3), cell(r["ratio"], "largest", 3),
           r["verdict"].get<std::string>(), one_in(r["chance"].get<double>()),
           cell(r, "wrong", 0)});
  t.print(stdout);
}

void print_text(const Options& o, const Outcome& found, const json& rows) {
  std::printf(
      "%s%s%s# %s, %d processes, loop '%s', %d rounds of each plugin in turn, %d repetitions in "
      "each\n"
      "%s",
      describe(circumstances()).c_str(), describe_plugin("this ", found.mine.plugin).c_str(),
      describe_plugin("other", found.other.plugin).c_str(), test_name(o.test), o.workers,
      loop_name(o.loop), o.rounds, o.repeats, describe_hosts(found.hosts).c_str());
  if (rows.empty()) return;
  std::printf(
      "# ratio: how many times as good as the other; above 1 this plugin is the better one.  "
      "Median,\n# least and largest of the rounds.  by chance: how often two equal plugins would "
      "have as many\n# rounds on one side; told apart where that is once in %g times or rarer, and "
      "in %d rounds or more\n",
      1 / kMostChance, static_cast<int>(kLeastRounds));
  print_table(rows);
}

void print(const Options& o, const Outcome& found) {
  const json rows = compare_rows(o.test, found.mine.rows, found.other.rows);
  if (o.json) {
    json all = json_envelope("net_perf", options_json(o), rows, kSchema);
    all["plugin"] = found.mine.plugin;
    all["against"] = found.other.plugin;
    if (!found.hosts.empty()) all["hosts"] = found.hosts;
    all["failure"] = found.failure;
    all["wrong_details"] = found.wrong_details;
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    print_text(o, found, rows);
  }
  std::fflush(stdout);
  for (const std::string& detail : found.wrong_details)
    std::fprintf(stderr, "net_perf: wrong data, %s\n", detail.c_str());
  if (!found.failure.empty())
    std::fprintf(stderr, "net_perf: %s%s", found.interrupted != 0 ? "" : "failed\n",
                 found.failure.c_str());
  if (o.plot.empty() || rows.empty()) return;
  std::vector<std::string> heading = plot_heading(o, found.mine.plugin);
  heading.push_back("against " + o.against + ", " + std::to_string(o.rounds) +
                    " rounds; bars from least to largest");
  write_plots(o.plot, heading, comparison_plots(o, rows));
}

// What one turn gets of the options; nothing when the time is over.
bool next_turn(const Options& all, bool other, std::int64_t deadline, Options& turn) {
  turn = all;
  if (other) turn.plugin = all.against;
  turn.timeout_s = static_cast<double>(deadline - now_ns()) / 1e9;
  return turn.timeout_s > 0.1;
}

std::int64_t deadline_of(const Options& o) {
  return now_ns() + static_cast<std::int64_t>(o.timeout_s * 1e9);
}

}  // namespace

double sign_test(std::size_t rounds, std::size_t on_one_side) {
  const std::size_t most = std::max(on_one_side, rounds - on_one_side);
  // How many of the 2^rounds outcomes have `most` or more on this side, each weighed as it is met.
  double weight = std::exp2(-static_cast<double>(rounds)), sum = 0;
  for (std::size_t k = rounds;; --k) {  // weight: C(rounds, k) / 2^rounds
    sum += weight;
    if (k == most) break;
    weight *= static_cast<double>(k) / static_cast<double>(rounds - k + 1);
  }
  return std::min(1.0, 2 * sum);
}

Verdict verdict(const std::vector<double>& ratios) {
  const auto better = static_cast<std::size_t>(
      std::count_if(ratios.begin(), ratios.end(), [](double r) { return r > 1; }));
  const auto worse = static_cast<std::size_t>(
      std::count_if(ratios.begin(), ratios.end(), [](double r) { return r < 1; }));
  const double chance = sign_test(better + worse, better);
  if (ratios.size() < kLeastRounds) return {"too few rounds", chance};
  if (chance > kMostChance) return {"not told apart", chance};
  return {better > worse ? "faster" : "slower", chance};
}

std::vector<bool> turns(int rounds) {
  std::vector<bool> out;
  for (int i = 0; i < rounds; ++i) {
    out.push_back(i % 2 != 0);
    out.push_back(i % 2 == 0);
  }
  return out;
}

json compare_rows(Test test, const std::vector<json>& mine, const std::vector<json>& others) {
  json out = json::array();
  std::size_t rounds = 0, rows = ~std::size_t{0};
  for (; rounds < std::min(mine.size(), others.size()); ++rounds)
    rows = std::min({rows, mine[rounds].size(), others[rounds].size()});
  if (rounds == 0) return out;
  for (std::size_t row = 0; row < rows; ++row)
    for (const Figure& figure : figures_of(test))
      out.push_back(compare(figure, row, rounds, mine, others));
  return out;
}

int run_comparison(const Options& options, const TakeTurn& take) {
  const std::vector<bool> order = turns(options.rounds);
  const double share = 1 / static_cast<double>(order.size());
  const std::int64_t deadline = deadline_of(options);
  ProgressBar bar(!options.json);
  Outcome found;
  bool wrong = false;
  for (std::size_t i = 0; i < order.size() && found.failure.empty(); ++i) {
    Side& side = order[i] ? found.other : found.mine;
    const std::string name = order[i] ? "other" : "this",
                      part = "round " + std::to_string(i / 2 + 1) + ", " + name;
    Options turn;
    if (!next_turn(options, order[i], deadline, turn)) {
      found.failure = "timed out after " + fixed(options.timeout_s, 1) + " s, before " + part +
                      "; raise --timeout, or give fewer --rounds\n";
      break;
    }
    Report report(turn, bar, share * static_cast<double>(i), share, part + ": ");
    std::string why;
    if (!take(turn, report, why))
      found.failure = report.interrupted() != 0
                          ? why
                          : part + (order[i] ? ", --against " : ", ") + turn.plugin + ": " + why;
    if (!report.plugin().empty()) side.plugin = report.plugin();
    if (found.failure.empty()) side.rows.push_back(report.rows());
    found.hosts = report.hosts();
    found.interrupted = report.interrupted();
    wrong = wrong || report.wrong_data();
    for (const std::string& detail : report.wrong_details())
      found.wrong_details.push_back(part + ", " + detail);
  }
  bar.clear();
  print(options, found);
  if (found.interrupted != 0) end_by(found.interrupted);
  return found.failure.empty() && !wrong ? 0 : 1;
}

int follow_comparison(const Options& options, const std::function<int(const Options& turn)>& take) {
  const std::int64_t deadline = deadline_of(options);
  for (const bool other : turns(options.rounds)) {
    Options turn;
    // Rank 0's clock says the same, and it tells.
    if (!next_turn(options, other, deadline, turn)) return 1;
    if (const int status = take(turn); status != 0) return status;
  }
  return 0;
}

}  // namespace twinpath::tools
