// What net_perf makes of figures, without workers: --against.
#include <algorithm>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "tools/net_perf/compare.h"
#include "tools/net_perf/plots.h"

using namespace twinpath::tools;
using nlohmann::json;

namespace {

json rows(double us, double wrong = 0) {
  return json::array({{{"size", 8},
                       {"median_us", us},
                       {"p99_us", 10.0},
                       {"cpu_us_per_message", 2 * us},
                       {"wrong", wrong}}});
}

json row_of(const json& all, const std::string& figure) {
  for (const json& r : all)
    if (r["figure"] == figure) return r;
  FAIL("no row of " << figure);
  return all;
}

}  // namespace

TEST_CASE("Turns alternate, and neither plugin is always the first of a round") {
  CHECK(turns(2) == std::vector<bool>{false, true, true, false});
  for (const int rounds : {2, 3, 5, 8}) {
    const std::vector<bool> order = turns(rounds);
    CHECK(order.size() == 2 * static_cast<std::size_t>(rounds));
    CHECK(std::count(order.begin(), order.end(), true) == rounds);
    for (std::size_t i = 0; i < order.size(); i += 2) CHECK(order[i] != order[i + 1]);
  }
}

TEST_CASE("Ratios are taken within rounds, and a machine that slows down does not change them") {
  // The other is 1.5 times as slow; the machine gets three times as slow meanwhile.
  std::vector<json> mine, others;
  for (const double slow : {1.0, 2.0, 3.0}) {
    mine.push_back(rows(slow));
    others.push_back(rows(1.5 * slow));
  }
  const json r = row_of(compare_rows(Test::latency, mine, others), "median_us");
  CHECK(r["size"] == 8);
  CHECK(r["ratio"]["least"].get<double>() == Approx(1.5));
  CHECK(r["ratio"]["largest"].get<double>() == Approx(1.5));
  CHECK(r["verdict"] == "faster");
  CHECK(r["this"]["median"] == 2.0);
  CHECK(r["this"]["largest"] == 3.0);
  CHECK(r["rounds"] == json::parse("[[1.0, 1.5], [2.0, 3.0], [3.0, 4.5]]"));
}

TEST_CASE("Rounds that disagree tell nothing apart, and equal ones neither") {
  const auto verdict = [](std::vector<json> mine, std::vector<json> others, const char* figure) {
    return row_of(compare_rows(Test::latency, mine, others), figure)["verdict"];
  };
  CHECK(verdict({rows(1), rows(1)}, {rows(2), rows(0.9)}, "median_us") == "not told apart");
  CHECK(verdict({rows(1), rows(1)}, {rows(2), rows(2)}, "p99_us") == "not told apart");
  CHECK(verdict({rows(3), rows(4)}, {rows(2), rows(2)}, "median_us") == "slower");
}

TEST_CASE("A rate is better when it is higher") {
  const auto rate = [](double v) {
    return json::array(
        {{{"size", 64}, {"median_gbytes_per_s", v}, {"cpu_us_per_message", 1.0}, {"wrong", 0}}});
  };
  const json all = compare_rows(Test::bw, {rate(4), rate(4)}, {rate(2), rate(1)});
  CHECK(row_of(all, "median_gbytes_per_s")["verdict"] == "faster");
  CHECK(row_of(all, "median_gbytes_per_s")["ratio"]["largest"] == 4.0);
}

TEST_CASE("Only whole rounds and sizes that all rounds have are compared") {
  json two = rows(1);
  two.push_back(two[0]);
  CHECK(compare_rows(Test::latency, {rows(1), rows(1)}, {rows(1)})[0]["rounds"].size() == 1);
  CHECK(compare_rows(Test::latency, {two}, {rows(1)}).size() == 3);  // figures of one size
  CHECK(compare_rows(Test::latency, {rows(1)}, {}).empty());
  CHECK(compare_rows(Test::latency, {rows(1, 2)}, {rows(1, 3)})[0]["wrong"] == 5.0);
  // A time of 0 is no reason for infinity: JSON has none.
  CHECK(compare_rows(Test::latency, {rows(0)}, {rows(1)}).dump().find("null") == std::string::npos);
}

TEST_CASE("A comparison is drawn with its ratios first, and both plugins in each panel") {
  Options o;
  const auto panels = comparison_plots(o, compare_rows(Test::latency, {rows(1)}, {rows(2)}));
  REQUIRE(panels.size() == 4);
  CHECK(panels[0].line_at == 1.0);
  CHECK(panels[0].series.size() == 3);
  CHECK(panels[0].series[0].points[0].y == 2.0);
  CHECK(panels[1].series[0].points[0].y == 1.0);
  CHECK(panels[1].series[1].points[0].y == 2.0);
}
