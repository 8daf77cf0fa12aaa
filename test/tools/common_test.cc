// Pure parts of tools/common.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>

#include "test/support/catch.h"
#include "tools/common/address.h"
#include "tools/common/failure.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/common/pattern.h"
#include "tools/common/screen.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
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

TEST_CASE("HOST:PORT is read, or refused with what is wrong") {
  struct Row {
    const char *text, *host, *port;  // host null: refused, with `port` in the reason
    unsigned least = 1;
  };
  for (const Row& row :
       {Row{"a:1", "a", "1"}, Row{"a.b.c:65535", "a.b.c", "65535"},
        Row{"[::1]:29500", "::1", "29500"}, Row{"127.0.0.1:0", "127.0.0.1", "0", 0},
        Row{"a:http", "a", "http"}, Row{"a:0", nullptr, "'0' is not a port: 1 to"},
        Row{"a:65536", nullptr, "'65536'"}, Row{"a:99999", nullptr, "1 to 65535"},
        Row{"a:99999999999999999999", nullptr, "is not a port"},
        Row{"a:-1", nullptr, "is not a port"}, Row{"a:+1", nullptr, "is not a port"},
        Row{"a: 1", nullptr, "is not a port"}, Row{"a", nullptr, "is not HOST:PORT"},
        Row{"a:", nullptr, "is not HOST:PORT"}, Row{":1", nullptr, "is not HOST:PORT"},
        Row{"", nullptr, "is not HOST:PORT"}, Row{"::1", nullptr, "brackets"},
        Row{"[::1]", nullptr, "brackets"}, Row{"[]:1", nullptr, "brackets"}}) {
    INFO(row.text);
    std::string why;
    const auto found = parse_host_port(row.text, row.least, why);
    CHECK(found.has_value() == (row.host != nullptr));
    if (found) {
      CHECK(found->host == row.host);
      CHECK(found->port == row.port);
    } else {
      CHECK(why.find(row.port) != std::string::npos);
    }
  }
}

TEST_CASE("Text is broken at blanks, and no word is lost") {
  using Lines = std::vector<std::string>;
  CHECK(wrapped_lines("one two three", 7) == Lines{"one two", "three"});
  CHECK(wrapped_lines("one two three", 0) == Lines{"one two three"});
  CHECK(wrapped_lines("a incomprehensible b", 5) == Lines{"a", "incomprehensible", "b"});
  CHECK(wrapped_lines("one\ntwo three", 80) == Lines{"one", "two three"});
  CHECK(wrapped_lines("", 80) == Lines{""});
}

TEST_CASE("A table that is too wide leaves out what can be spared, in that order") {
  Table t({{"who"}, {"much", "", 6, false, 1}, {"more", "", 6, false, 2}, {"why"}});
  t.add({"a", "1", "2", "because"});
  const auto heading = [&](std::size_t width) {
    Table fitted = t;
    fitted.fit(width);
    std::array<char, 256> text{};
    std::FILE* const memory = ::fmemopen(text.data(), text.size(), "w");
    fitted.print(memory);
    std::fclose(memory);
    return std::string(text.data());
  };
  CHECK(heading(0) == "who    much    more      why\n  a       1       2  because\n");
  CHECK(heading(28) == heading(0));
  CHECK(heading(27) == "who    much      why\n  a       1  because\n");
  CHECK(heading(12) == "who      why\n  a  because\n");
  CHECK(heading(1) == heading(12));
}

namespace {

// What a program says on stderr that ends so, and its status.
std::pair<int, std::string> ends(const std::function<int()>& run) {
  std::FILE* const file = std::tmpfile();
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  const int status = run_tool("tool", 7, run);
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::rewind(file);
  std::array<char, 512> text{};
  const std::size_t n = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  return {status, std::string(text.data(), n)};
}

}  // namespace

TEST_CASE("What a program throws is one line in words, and no C++ name") {
  using Said = std::pair<int, std::string>;
  CHECK(ends([] { return 3; }) == Said{3, ""});
  CHECK(ends([]() -> int { throw Failure("no plugin; give --plugin"); }) ==
        Said{7, "tool: no plugin; give --plugin\n"});
  const Said memory = ends([]() -> int { throw std::bad_alloc(); });
  CHECK(memory.first == 7);
  CHECK(memory.second.find("tool: out of memory") == 0);
  CHECK(memory.second.find("bad_alloc") == std::string::npos);
  CHECK(ends([]() -> int { throw std::out_of_range("x"); }).second.find("please report") !=
        std::string::npos);
}

TEST_CASE("A file that the user named is written, and a FIFO that nobody reads is no wait") {
  std::string folder = std::filesystem::temp_directory_path() / "twinpath-output-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string file = folder + "/file", fifo = folder + "/fifo";
  CHECK(write_output(file, "longer than what follows") == 0);
  CHECK(make_output(file) == 0);
  CHECK(std::filesystem::file_size(file) == 24);
  CHECK(write_output(file, "short") == 0);
  CHECK(std::filesystem::file_size(file) == 5);
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(make_output(fifo) == ENXIO);
  CHECK(write_output(fifo, "x") == ENXIO);
  CHECK(write_output(folder, "x") == EISDIR);
  CHECK(write_output("/dev/full", "x") == ENOSPC);
  std::filesystem::remove_all(folder);
}
