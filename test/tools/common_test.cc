// Pure parts of tools/common.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "test/support/catch.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/pattern.h"
#include "tools/common/statistics.h"
#include "tools/common/units.h"

using namespace twinpath::tools;

TEST_CASE("Lines of nccl.conf are taken as NCCL takes them") {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(parse_nccl_conf("# a comment\nA=1\r\n B =2 # kept\n\nnothing\nC=x=y\nD=") ==
        Pairs{{"A", "1"}, {" B ", "2 # kept"}, {"C", "x=y"}, {"D", ""}});
  CHECK(parse_nccl_conf("").empty());
  CHECK(parse_nccl_conf("A=1") == Pairs{{"A", "1"}});
  const Pairs longer = parse_nccl_conf("A=" + std::string(2000, 'x') + "\nB=2\n");
  REQUIRE(longer.size() == 2);
  CHECK(longer[0].second.size() == 1023);
  CHECK(longer[1].second == "2");
  // A line goes on behind 4095 bytes as if it were another.
  CHECK(parse_nccl_conf(std::string(4095, 'x') + "A=1\nB=2") == Pairs{{"A", "1"}, {"B", "2"}});
  CHECK(parse_nccl_conf(std::string("A=1\0B=2\nC=3", 12)) == Pairs{{"A", "1"}, {"C", "3"}});
}

TEST_CASE("A line of nccl.conf that does not count is told, with its file") {
  std::string folder = "/tmp/twinpath-conf-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string own = folder + "/own.conf", system = folder + "/system.conf";
  std::ofstream(own) << "NCCL_TEST_A=1\nNCCL_TEST_B=2\nNCCL_TEST_C=3\n";
  std::ofstream(system) << "NCCL_TEST_C=4\nNCCL_TEST_D=5\n";
  setenv("NCCL_TEST_A", "9", 1);
  setenv("NCCL_TEST_B", "2", 1);
  const NcclConf conf = apply_nccl_conf(own, "", "", system);
  REQUIRE(conf.overruled.size() == 2);  // B says the same
  CHECK(conf.overruled[0].name == "NCCL_TEST_A");
  CHECK(conf.overruled[0].file == own);
  CHECK(conf.overruled[0].value == "1");
  CHECK(conf.overruled[1].name == "NCCL_TEST_C");
  CHECK(conf.overruled[1].file == system);
  CHECK(conf.overruled[1].value == "4");
  CHECK(conf.origins.size() == 2);
  for (const char* name : {"NCCL_TEST_A", "NCCL_TEST_B", "NCCL_TEST_C", "NCCL_TEST_D"})
    unsetenv(name);
  std::filesystem::remove_all(folder);
}

TEST_CASE("Sizes are read with and without units") {
  CHECK(parse_bytes("0") == 0u);
  CHECK(parse_bytes("64k") == 65536u);
  CHECK(parse_bytes("1M") == 1048576u);
  CHECK(parse_bytes("2GiB") == 2147483648u);
  for (const char* bad :
       {"", "k", "5x", "-1", "1.5k", " 8", "8 ", "99999999999999999999", "18446744073709551615k"})
    CHECK_FALSE(parse_bytes(bad));
}

TEST_CASE("Sizes are printed so that they read back") {
  for (const std::size_t n : {0ul, 1ul, 1000ul, 1024ul, 3072ul, 1048576ul, 1048577ul, 1ul << 40})
    CHECK(parse_bytes(format_bytes(n)) == n);
  CHECK(format_bytes(65536) == "64k");
}

TEST_CASE("A list of sizes names its first bad entry") {
  std::vector<std::size_t> sizes;
  std::string why;
  REQUIRE(parse_byte_list("8,64,4k", sizes, why));
  CHECK(sizes == std::vector<std::size_t>{8, 64, 4096});
  CHECK_FALSE(parse_byte_list("8,,9", sizes, why));
  CHECK_FALSE(parse_byte_list("8,9q,x", sizes, why));
  CHECK(why.find("'9q'") != std::string::npos);
}

TEST_CASE("A range of sizes includes both ends and cannot overflow") {
  CHECK(size_steps(8, 64, 2) == std::vector<std::size_t>{8, 16, 32, 64});
  CHECK(size_steps(8, 100, 4) == std::vector<std::size_t>{8, 32});
  CHECK(size_steps(~0ul / 2, ~0ul, 4).size() == 1);
}

TEST_CASE("Quantiles are nearest ranks") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Statistics s = summarize(samples);
  CHECK(s.min == 1);
  CHECK(s.median == 50);
  CHECK(s.p99 == 99);
  CHECK(s.p999 == 100);
  CHECK(s.max == 100);
  CHECK(s.mean == 50.5);
  CHECK(summarize({7}).p99 == 7);
  CHECK(summarize({}).count == 0);
}

TEST_CASE("A pattern finds one changed byte, a shift and another message") {
  std::array<std::uint8_t, 61> data{};
  fill_pattern(data.data(), data.size(), pattern_seed(1, 2, 3));
  CHECK_FALSE(find_mismatch(data.data(), data.size(), pattern_seed(1, 2, 3)));
  CHECK(find_mismatch(data.data(), data.size(), pattern_seed(1, 2, 4)));
  CHECK(find_mismatch(data.data() + 8, data.size() - 8, pattern_seed(1, 2, 3)) == 0u);
  for (const std::size_t at : {0u, 7u, 8u, 33u, 60u}) {
    data[at] ^= 1;
    CHECK(find_mismatch(data.data(), data.size(), pattern_seed(1, 2, 3)) == at);
    data[at] ^= 1;
  }
  data[3] ^= 1;
  CHECK_FALSE(find_mismatch(data.data(), data.size(), pattern_seed(1, 2, 3), 8));
}
