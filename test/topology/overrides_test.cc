// The user's word: settings, the platform file, and what contradicts itself.
#include "topology/decide/overrides.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "plugin/base/options.h"
#include "plugin/base/peer_modes.h"
#include "test/support/catch.h"
#include "topology/decide/decision.h"

namespace twinpath {
namespace {

Config config_with(std::initializer_list<std::pair<std::string_view, const char*>> settings) {
  return read_config([&](const char* name) -> const char* {
    for (const auto& [key, value] : settings) {
      if (key == name) return value;
    }
    return nullptr;
  });
}

std::string refusal_of_peers(std::string_view text) {
  std::string why;
  CHECK_FALSE(parse_peer_modes(text, why).has_value());
  return why;
}

}  // namespace

TEST_CASE("NCCL_NET_GDR_LEVEL takes NCCL's words and old numbers, and ours") {
  const std::pair<const char*, Distance> table[] = {
      {"LOC", Distance::self}, {"PIX", Distance::pix},   {"pxb", Distance::pxb},
      {"P2C", Distance::c2c},  {"C2C", Distance::c2c},   {"PXN", Distance::c2c},
      {"PHB", Distance::phb},  {"NODE", Distance::node}, {"sock", Distance::sock},
      {"SYS", Distance::sys},  {"0", Distance::self},    {"1", Distance::pix},
      {"2", Distance::pxb},    {"3", Distance::phb},     {"4", Distance::sys},
      {"5", Distance::sys},    {"6", Distance::sys},     {"0x2", Distance::pxb},
      {"03", Distance::phb},
  };
  for (const auto& [text, distance] : table) {
    CAPTURE(text);
    const auto d = parse_gdr_level(text);
    REQUIRE(d.has_value());
    CHECK(*d == distance);
    // What the option table lets through is what is understood here.
    CHECK(end_settings(config_with({{"NCCL_NET_GDR_LEVEL", text}}), -1).gdr_level == distance);
  }
  for (const char* text : {"", "-1", "2x", "UNK", "NVL", "PIXX", "P", "1.0"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_gdr_level(text).has_value());
    CHECK_FALSE(end_settings(config_with({{"NCCL_NET_GDR_LEVEL", text}}), -1).gdr_level);
  }
}

TEST_CASE("TWINPATH_PEER_MODE overrules TWINPATH_MODE for the ranks that it names") {
  const Config c = config_with(
      {{"TWINPATH_MODE", "gda-cpu"}, {"TWINPATH_PEER_MODE", "3:proxy,7-9:gda,11:auto"}});
  CHECK(end_settings(c, 3).wish == ModeChoice::proxy);
  CHECK(end_settings(c, 6).wish == ModeChoice::gda_cpu);
  for (const int rank : {7, 8, 9}) CHECK(end_settings(c, rank).wish == ModeChoice::gda);
  CHECK(end_settings(c, 10).wish == ModeChoice::gda_cpu);
  CHECK(end_settings(c, 11).wish == ModeChoice::automatic);
  CHECK(end_settings(c, -1).wish == ModeChoice::gda_cpu);
}

TEST_CASE("bad peer modes are refused with the entry and the cause") {
  CHECK(refusal_of_peers("x") == "'x' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers("3:") ==
        "the mode of '3:' must be one of auto, stage, proxy, gda-cpu, gda");
  CHECK(refusal_of_peers("3:fast") ==
        "the mode of '3:fast' must be one of auto, stage, proxy, gda-cpu, gda");
  CHECK(refusal_of_peers("9-7:gda") == "'9-7:gda' must name the lower rank first");
  CHECK(refusal_of_peers("-1:gda") == "'-1:gda' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers("1-:gda") == "'1-:gda' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers("1,2:gda") == "'1' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers(":gda") == "':gda' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers("99999999999:gda") ==
        "'99999999999:gda' must be rank:mode or first-last:mode");
  CHECK(refusal_of_peers("1-5:gda,4:proxy") == "rank 4 has two modes, gda and proxy");
  std::string why;
  CHECK(parse_peer_modes("1-5:gda,4:gda,", why).has_value());  // the same twice does no harm
  CHECK(parse_peer_modes("", why)->empty());
}

TEST_CASE("a platform file gives classes, rates, rails and HCAs to leave out") {
  const PlatformFile f = PlatformFile::parse(
      "# flat VM\n"
      "GPU * HCA * CLASS PHB\r\n"
      "  gpu 0000:17:00.0\thca mlx5_0 class pix   # nearest\n"
      "GPU 00000000:2A:00.0 HCA mlx5_1 CLASS P2C READ 12.5 WRITE 24\n"
      "\n"
      "GPU * HCA mlx5_1 READ 11\n"
      "HCA mlx5_9 IGNORE\n"
      "HCA mlx5_0 RAIL 3");
  CHECK(f.errors().empty());
  CHECK(f.pair("0000:17:00.0", "mlx5_0") == PairOverride{Distance::pix, {}, {}});
  CHECK(f.pair("17:00.0", "mlx5_0").distance == Distance::pix);
  CHECK(f.pair("00000000:17:00.0", "mlx5_7") == PairOverride{Distance::phb, {}, {}});
  CHECK(f.pair("0000:2a:00.0", "mlx5_1") == PairOverride{Distance::c2c, 11.0, 24.0});
  CHECK(f.ignores("mlx5_9"));
  CHECK_FALSE(f.ignores("mlx5_0"));
  CHECK(f.rail("mlx5_0") == 3);
  CHECK_FALSE(f.rail("mlx5_9"));
}

TEST_CASE("a bad line of a platform file is named and skipped, the others hold") {
  const std::pair<const char*, const char*> table[] = {
      {"GPU 0000:17:00.0 HCA mlx5_0 CLASS PIXX",
       "class 'PIXX' is none of SELF, PIX, PXB, C2C, PHB, NODE, SOCK, SYS, UNK"},
      {"GPU first HCA mlx5_0 CLASS PIX", "'first' is no bus id such as 0000:17:00.0"},
      {"GPU * HCA a READ -3", "READ '-3' is no rate in GB/s"},
      {"GPU * HCA a READ nan", "READ 'nan' is no rate in GB/s"},
      {"GPU * HCA a WRITE inf", "WRITE 'inf' is no rate in GB/s"},
      {"GPU * HCA a WRITE 24GB", "WRITE '24GB' is no rate in GB/s"},
      {"GPU * HCA a COLOUR red", "'COLOUR' is none of CLASS, READ, WRITE"},
      {"HCA a RAIL -1", "after HCA 'a' comes IGNORE or RAIL 0..254"},
      {"HCA a IGNORE please", "after HCA 'a' comes IGNORE or RAIL 0..254"},
      {"HCA a RAIL", "after HCA 'a' comes IGNORE or RAIL 0..254"},
      {"GPU * HCA a CLASS",
       "starts with 'GPU'; a statement is GPU <bus id> HCA <name> CLASS <class>, or HCA <name> "
       "IGNORE"},
      {"<system version=\"1\">",
       "starts with '<system'; a statement is GPU <bus id> HCA <name> CLASS <class>, or HCA <name> "
       "IGNORE"},
  };
  for (const auto& [line, error] : table) {
    CAPTURE(line);
    const PlatformFile f =
        PlatformFile::parse("HCA good RAIL 1\n" + std::string(line) + "\nHCA good RAIL 2\n");
    REQUIRE(f.errors().size() == 1);
    CHECK(f.errors()[0] == "line 2: " + std::string(error));
    CHECK(f.rail("good") == 2);
    CHECK(f.pair("0000:17:00.0", "mlx5_0") == PairOverride{});
  }
  const PlatformFile junk = PlatformFile::parse(std::string(1000, '\n') + "\x1b[31m\n");
  REQUIRE(junk.errors().size() == 1);
  CHECK(junk.errors()[0].find('\x1b') == std::string::npos);
  std::string many;
  for (int i = 0; i < 50; ++i) many += "GPU what\n";
  const PlatformFile flood = PlatformFile::parse(many);
  REQUIRE(flood.errors().size() == 21);
  CHECK(flood.errors().back() == "and 30 more lines");
  // A file of something else is one error, and none of its words.
  const PlatformFile other = PlatformFile::parse("root:x:0:0::/root\nbin:x:1:1\n");
  REQUIRE(other.errors().size() == 1);
  CHECK(other.errors()[0].starts_with("is no platform file: "));
  CHECK(other.errors()[0].find("root") == std::string::npos);
}

TEST_CASE("a platform file that cannot be read is an empty one, with the cause") {
  CHECK(PlatformFile::load("/nonexistent/file").errors() ==
        std::vector<std::string>{"cannot be read: No such file or directory"});
  const PlatformFile folder = PlatformFile::load("/");
  REQUIRE(folder.errors().size() == 1);
  CHECK(folder.errors()[0] == "cannot be read: Is a directory");
  char name[] = "platform-XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0);
  close(fd);
  CHECK(PlatformFile::load(name).errors().empty());
  std::ofstream(name) << "HCA a RAIL 4\n";
  CHECK(PlatformFile::load(name).rail("a") == 4);
  std::ofstream(name) << std::string(2 << 20, '#');
  CHECK(PlatformFile::load(name).errors() == std::vector<std::string>{"has more than 1 MiB"});
  unlink(name);
  REQUIRE(mkfifo(name, 0600) == 0);
  CHECK(PlatformFile::load(name).errors() == std::vector<std::string>{"is a FIFO, not a file"});
  unlink(name);
}

TEST_CASE("precedence: settings, then measured rates, then the file's class, then what was read") {
  EndFacts f;
  f.distance = Distance::sys;
  f.data_direct = Distance::pxb;
  f.probes.dmabuf.answer = Answer::yes;
  f.pcie_gbs = 50;
  CHECK(make_record(f, {}).land.reason == Reason::dd_used);
  apply({Distance::node, {}, {}}, f);
  PlacementRecord p = make_record(f, {});
  CHECK(p.distance == Distance::node);
  CHECK(p.land.rule == Rule::w4);
  CHECK((p.flags & kFlagPlatform) != 0);
  apply({{}, 20.0, 45.0}, f);
  p = make_record(f, {});
  CHECK(p.distance == Distance::node);
  CHECK(p.land.reason == Reason::ok_measured);
  CHECK(p.source.reason == Reason::read_slow);
  EndSettings s;
  s.gdr_level = Distance::pxb;
  p = make_record(f, s);
  CHECK(p.land.reason == Reason::gdr_far);
  CHECK(p.source.reason == Reason::gdr_far);
}

TEST_CASE("settings that contradict each other are named, and the result is sane") {
  CHECK(contradictions(config_with({})).empty());
  CHECK(contradictions(config_with({{"TWINPATH_MODE", "gda"}, {"NCCL_NET_GDR_LEVEL", "SYS"}}))
            .empty());
  const Config read_off = config_with({{"TWINPATH_MODE", "gda"}, {"NCCL_NET_GDR_READ", "0"}});
  REQUIRE(contradictions(read_off).size() == 1);
  CHECK(
      contradictions(read_off)[0] ==
      "TWINPATH_MODE=gda needs adapters that read GPU memory, but NCCL_NET_GDR_READ=0 forbids it: "
      "the CPU proxy stages instead; unset one of them");
  CHECK(contradictions(config_with({{"TWINPATH_MODE", "gda-cpu"}, {"NCCL_NET_GDR_LEVEL", "LOC"}}))
            .size() == 1);
  CHECK(contradictions(config_with({{"TWINPATH_MODE", "stage"},
                                    {"NCCL_NET_GDR_LEVEL", "SYS"},
                                    {"NCCL_NET_GDR_READ", "1"}}))
            .size() == 2);

  EndFacts f;
  f.distance = Distance::pix;
  f.probes.dmabuf.answer = Answer::yes;
  f.probes.uar.answer = Answer::yes;
  f.mlx5 = f.devx = true;
  const PlacementRecord p = make_record(f, end_settings(read_off, 0));
  const Direction d = decide(p, p, {Pattern::latency, true}).send;
  CHECK(d.mode == Mode::proxy_stage);
  CHECK(d.wish_unmet);
  CHECK(d.need == Reason::read_off);
}

}  // namespace twinpath
