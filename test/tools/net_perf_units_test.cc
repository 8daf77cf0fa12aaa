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
  CHECK(r["verdict"] == "too few rounds");
  CHECK(r["this"]["median"] == 2.0);
  CHECK(r["this"]["largest"] == 3.0);
  CHECK(r["rounds"] == json::parse("[[1.0, 1.5], [2.0, 3.0], [3.0, 4.5]]"));
}

TEST_CASE("The odds are those of throwing a coin") {
  struct Row {
    std::size_t rounds, on_one_side;
    double chance;
  };
  for (const Row& row :
       {Row{0, 0, 1}, Row{1, 1, 1}, Row{2, 2, 0.5}, Row{2, 1, 1}, Row{5, 5, 0.0625},
        Row{5, 0, 0.0625}, Row{5, 4, 0.375}, Row{8, 7, 18.0 / 256}, Row{10, 9, 22.0 / 1024},
        Row{10, 5, 1}, Row{30, 25, 3.2490e-4}}) {
    INFO(row.on_one_side << " of " << row.rounds);
    CHECK(sign_test(row.rounds, row.on_one_side) == Approx(row.chance).epsilon(1e-4));
  }
  CHECK(sign_test(1000, 1000) < 1e-300);
  CHECK(sign_test(1000, 500) == 1);
}

TEST_CASE("A verdict takes five rounds, and odds against chance") {
  struct Row {
    std::vector<double> ratios;
    std::string text;
  };
  const std::vector<double> tie(20, 1.0);
  std::vector<double> nine_of_ten(9, 1.1), eight_of_ten(8, 1.1);
  nine_of_ten.push_back(0.9);
  eight_of_ten.insert(eight_of_ten.end(), {0.9, 0.9});
  for (const Row& row : {Row{{2, 2}, "too few rounds"}, Row{{2, 2, 2, 2}, "too few rounds"},
                         Row{{2, 2, 2, 2, 2}, "faster"}, Row{{0.5, 0.9, 0.8, 0.9, 0.99}, "slower"},
                         Row{{2, 2, 2, 2, 0.9}, "not told apart"},
                         Row{{2, 2, 2, 2, 1}, "not told apart"}, Row{tie, "not told apart"},
                         Row{nine_of_ten, "faster"}, Row{eight_of_ten, "not told apart"}}) {
    INFO(json(row.ratios).dump());
    CHECK(verdict(row.ratios).text == row.text);
  }
  const json found = row_of(
      compare_rows(Test::latency, std::vector<json>(5, rows(3)), std::vector<json>(5, rows(2))),
      "median_us");
  CHECK(found["verdict"] == "slower");
  CHECK(found["chance"] == 0.0625);
}

TEST_CASE("A rate is better when it is higher") {
  const auto rate = [](double v) {
    return json::array(
        {{{"size", 64}, {"median_gbytes_per_s", v}, {"cpu_us_per_message", 1.0}, {"wrong", 0}}});
  };
  const json all = compare_rows(Test::bw, {rate(4), rate(4)}, {rate(2), rate(1)});
  CHECK(row_of(all, "median_gbytes_per_s")["ratio"]["least"] == 2.0);
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
