// What gda_perf decides without a GPU: options, sizes, plans, and the report.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/tools/complaint.h"
#include "tools/common/net_plugin.h"
#include "tools/gda_perf/options.h"
#include "tools/gda_perf/report.h"

using namespace twinpath::gda_perf;
using twinpath::tools::complaint, twinpath::tools::has;

namespace {

Options parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "gda_perf");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Options out;
  int code = -1;
  const bool go_on = parse_options(static_cast<int>(argv.size()), argv.data(), out, code);
  REQUIRE(go_on);
  return out;
}

// The message of the complaint about these options; "" when there is none.
std::string complaint_of(const std::vector<std::string>& words) {
  return complaint([&] { (void)parsed(words); });
}

Row latency_row(std::uint64_t wrong) {
  Row row{.test = "pingpong", .bytes = 8, .messages = 4};
  row.us = twinpath::tools::summarize({4, 1, 3, 2});
  for (const unsigned ns : {4000u, 1000u, 3000u, 2000u}) row.times_ns.add(ns);
  row.wrong = wrong;
  row.cpu_s = 3;
  row.wall_s = 2;
  return row;
}

std::string temporary_name() {
  char name[] = "/tmp/gda_perf_test_XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0);
  std::fclose(fdopen(fd, "w"));
  return name;
}

}  // namespace

TEST_CASE("Without options every test runs over its own sizes") {
  const Options o = parsed({});
  CHECK(o.tests.size() == 7);
  CHECK(o.sizes(Test::pingpong) ==
        std::vector<std::size_t>{8, 32, 128, 512, 2048, 8192, 32768, 65536});
  CHECK(o.sizes(Test::signal) == std::vector<std::size_t>{0});
  CHECK(o.sizes(Test::rate) == std::vector<std::size_t>{8});
  CHECK(o.sizes(Test::bw).front() == 4096);
  CHECK(o.sizes(Test::bw).back() == std::size_t{256} << 20);
  CHECK(o.area_bytes() == std::size_t{256} << 20);
  CHECK(o.points() == 3 * 8 + 2 + 2 * 6 + 2 * 2 * 9);
  CHECK_FALSE(o.json);
}

TEST_CASE("Signals in windows and reads are measured only when asked for by name") {
  CHECK_FALSE(parsed({}).window_signals());
  CHECK_FALSE(parsed({"--test", "all"}).window_signals());
  CHECK_FALSE(parsed({"--test", "all"}).newer_tests());
  const Options o = parsed({"--test", "signal,wsignal,wpingpong"});
  CHECK(o.tests == std::vector<Test>{Test::signal, Test::wsignal, Test::wpingpong});
  CHECK(o.window_signals());
  CHECK(o.newer_tests());
  const Options reads = parsed({"--test", "get"});
  CHECK_FALSE(reads.window_signals());
  CHECK(reads.newer_tests());
  CHECK(reads.sizes(Test::get) == reads.sizes(Test::pingpong));
  CHECK(o.sizes(Test::wsignal) == std::vector<std::size_t>{0});
  CHECK(o.sizes(Test::wpingpong) == o.sizes(Test::pingpong));
  CHECK(has(complaint_of({"--test", "wsignals"}), "wpingpong wsignal"));
  CHECK(parsed({"--test", "counters"}).points() == 6);
  CHECK(parsed({"--test", "counters"}).sizes(Test::counters) == std::vector<std::size_t>{8});
}

TEST_CASE("A limit beyond the other's default leaves that size alone") {
  CHECK(parsed({"--max", "512"}).sizes(Test::bw) == std::vector<std::size_t>{512});
  CHECK(parsed({"--min", "1m"}).sizes(Test::pingpong) == std::vector<std::size_t>{1 << 20});
  CHECK(parsed({"-b", "8", "-e", "24"}).sizes(Test::bw) == std::vector<std::size_t>{8, 24});
}

TEST_CASE("Lists are split at commas, and JSON goes to a file or to stdout") {
  const Options o =
      parsed({"--test", "rate,bw", "--blocks", "1,32", "--bw-blocks", "2", "--json", "x.json"});
  CHECK(o.tests == std::vector<Test>{Test::rate, Test::bw});
  CHECK(o.blocks == std::vector<int>{1, 32});
  CHECK(o.bw_blocks == std::vector<int>{2});
  CHECK(o.json);
  CHECK(o.json_file == "x.json");
  const Options plain = parsed({"--json"});
  CHECK(plain.json);
  CHECK(plain.json_file.empty());
}

TEST_CASE("Bad options are named with what is allowed") {
  CHECK(has(complaint_of({"--test", "latency"}), "\"latency\" is unknown; use all, or a list"));
  CHECK(has(complaint_of({"--min", "12"}), "multiples of 8"));
  CHECK(has(complaint_of({"--max", "big"}), "multiples of 8"));
  CHECK(has(complaint_of({"--min", "64k", "--max", "8"}), "is more than --max 8"));
  CHECK(has(complaint_of({"-g", "3"}), "without a partner"));
  CHECK(complaint_of({"-g", "1"}).empty());
}

TEST_CASE("A repetition of the bandwidth test has whole rounds of blocks that fit the area") {
  const Options o = parsed({});
  for (const int blocks : {1, 3, 4, 32}) {
    for (const std::size_t bytes : o.sizes(Test::bw)) {
      const StreamPlan plan = plan_stream(o, bytes, blocks);
      CHECK(plan.messages % static_cast<std::uint64_t>(blocks) == 0);
      CHECK(plan.messages >= 2);
      CHECK(plan.slots >= 1);
      CHECK(plan.slots <= plan.messages);
      CHECK(plan.slots * bytes <= o.area_bytes());
    }
  }
  CHECK(plan_stream(o, std::size_t{256} << 20, 1).messages == 2);
  CHECK(plan_stream(o, 4096, 1).messages == 4096);
  CHECK(plan_stream(o, 4096, 1).slots == 64);
}

TEST_CASE("The rate test posts as many messages whatever the number of blocks") {
  const Options o = parsed({"--iters", "100"});
  CHECK(rate_messages(o, 1) == 3200);
  CHECK(rate_messages(o, 32) == 100);
  CHECK(rate_messages(parsed({"--iters", "1"}), 32) == 1);
}

TEST_CASE("The JSON document has circumstances, facts, figures and the sum of what is wrong") {
  const std::string name = temporary_name();
  Report report(parsed({"--json", name}));
  report.fact("backend", "GDAKI");
  report.row(latency_row(0));
  Row rate{.test = "rate", .variant = "put+signal", .bytes = 8, .blocks = 4};
  rate.messages_per_s = 2.5e6;
  report.row(rate);
  CHECK(report.finish());

  std::ifstream file(name);
  const nlohmann::json j = nlohmann::json::parse(file);
  // The moment is each document's own.
  const auto timeless = [](nlohmann::json document) {
    document["circumstances"].erase("time");
    return document;
  };
  CHECK(timeless(j) == timeless(report.document()));
  CHECK(j["tool"] == "gda_perf");
  CHECK(j.contains("circumstances"));
  CHECK(j["backend"] == "GDAKI");
  CHECK(j["wrong"] == 0);
  CHECK(j["results"].size() == 2);
  CHECK(j["results"][0]["us"]["median"] == 2.0);
  CHECK(j["results"][0]["us"]["p99"] == 4.0);
  CHECK(j["results"][0]["cpu_cores"] == 1.5);
  CHECK_FALSE(j["results"][0].contains("variant"));
  CHECK_FALSE(j["results"][0].contains("gb_per_s"));
  CHECK(j["results"][1]["variant"] == "put+signal");
  CHECK(j["results"][1]["messages_per_s"] == 2.5e6);
  CHECK(j["results"][1]["cpu_cores"] == 0.0);
  std::remove(name.c_str());
}

TEST_CASE("One wrong word fails the run, and a file that cannot be written is said at once") {
  Report report(parsed({}));
  report.row(latency_row(0));
  report.row(latency_row(1));
  CHECK_FALSE(report.finish());
  CHECK(report.document()["wrong"] == 1);
  const Options unwritable = parsed({"--json", "/nonexistent/folder/x.json"});
  CHECK(has(complaint([&] { (void)Report(unwritable); }), "cannot be written"));
}

TEST_CASE("Every key of the document is explained in tools/JSON.md") {
  Report report(parsed({}));
  for (const char* fact : {"nccl", "plugin", "gpus", "backend", "contexts"}) report.fact(fact, 1);
  report.row(latency_row(0));
  Row row{.test = "bw", .variant = "bidirectional", .bytes = 8};
  row.messages_per_s = 1;
  row.gb_per_s = twinpath::tools::summarize({1, 2});
  report.row(row);
  std::ifstream file(TWINPATH_JSON_DOCUMENT);
  std::string section, line;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line.rfind("## ", 0) == 0)
      inside = line == "## gda_perf/" + std::to_string(kSchema) || line == "## Common keys";
    if (inside) section += line + "\n";
  }
  const auto explained = [&](const std::string& key, const std::string& parent) {
    // On the line that begins with its parent.
    return has(section, ("`" + parent + key + "`").c_str()) ||
           has(section, ("`." + key + "`").c_str());
  };
  const nlohmann::json j = report.document();
  for (const auto& [key, value] : j.items()) {
    INFO(key);
    CHECK(explained(key, ""));
  }
  for (const nlohmann::json& result : j["results"])
    for (const auto& [key, value] : result.items()) {
      INFO(key);
      CHECK(explained(key, "results[]."));
      if (!value.is_object()) continue;
      for (const auto& [inner, ignored] : value.items())
        CHECK(explained(inner, "results[]." + key + "."));
    }
}

TEST_CASE("Latencies have p99.9 and a histogram, and all figures are drawn") {
  const std::string name = temporary_name();
  Report report(parsed({"--plot", name}));
  report.row(latency_row(0));
  Row rate{.test = "rate", .variant = "put+signal", .bytes = 8, .blocks = 4};
  rate.messages_per_s = 2.5e6;
  report.row(rate);
  Row bw{.test = "bw", .variant = "one way", .bytes = 4096, .blocks = 1};
  bw.gb_per_s = twinpath::tools::summarize({1, 2, 3});
  report.row(bw);
  CHECK(report.finish());
  const nlohmann::json first = report.document()["results"][0];
  CHECK(first["us"]["p999"] == 4.0);
  CHECK(first["histogram_us"].size() == 4);
  const auto panels = report.plots();
  REQUIRE(panels.size() == 3);
  CHECK(panels[0].series.size() == 2);  // median and p99.9
  CHECK(panels[2].series[0].points[0].low == 1.0);
  std::ifstream file(name);
  const std::string svg((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(has(svg, "pingpong p99.9"));
  CHECK(has(svg, "bw one way, 1 blocks"));
  std::remove(name.c_str());
  const Options unwritable = parsed({"--plot", "/nonexistent/folder/x.svg"});
  CHECK(has(complaint([&] { (void)Report(unwritable); }),
            "--plot /nonexistent/folder/x.svg cannot be written"));
}

TEST_CASE("The plugin is the one that is named, else NCCL_NET_PLUGIN's, else this program's own") {
  unsetenv("NCCL_NET_PLUGIN");
  // As the other tools find it: of the build, the installation, or what the loader has by our name.
  const std::string own = plugin_for_nccl(parsed({}));
  CHECK(has(own, "libnccl-net"));
  CHECK(own == twinpath::tools::find_plugin(""));
  CHECK(plugin_for_nccl(parsed({"--plugin", "/x/libnccl-net.so"})) == "/x/libnccl-net.so");
  CHECK(plugin_for_nccl(parsed({"--plugin", "other"})) == "libnccl-net-other.so");
  CHECK(plugin_for_nccl(parsed({"--plugin", "none"})) == "none");  // NCCL's own
  setenv("NCCL_NET_PLUGIN", "mine", 1);
  CHECK(plugin_for_nccl(parsed({})).empty());  // stays
  CHECK(plugin_for_nccl(parsed({"--plugin", "other"})) == "libnccl-net-other.so");
  unsetenv("NCCL_NET_PLUGIN");
}
