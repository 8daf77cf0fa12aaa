// The option table: every row parses, prints, refuses and documents itself.
#include "plugin/base/options.h"

#include <cstdlib>
#include <map>
#include <set>

#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

using Environment = std::map<std::string, std::string>;

Config read(const Environment& environment, std::vector<OptionState>* states = nullptr) {
  return read_config(
      [&](const char* name) -> const char* {
        auto it = environment.find(name);
        return it == environment.end() ? nullptr : it->second.c_str();
      },
      states);
}

const Option& find(std::string_view name) {
  for (const Option& o : options()) {
    if (o.name == name) return o;
  }
  throw std::runtime_error("no option " + std::string(name));
}

// Sets an environment variable for the life of the object.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnv() { unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("without an environment every option has its documented default") {
  std::vector<OptionState> states;
  const Config c = read({}, &states);
  CHECK(c.fabric == FabricChoice::automatic);
  CHECK(c.soft_hcas == "soft0");
  CHECK(c.ib_timeout == 20);
  CHECK(c.ib_retry_cnt == 7);
  CHECK(c.peer_timeout_ms == 40000);
  CHECK(c.ib_gid_index == -1);
  CHECK(c.ib_pci_relaxed_ordering == 2);
  CHECK(c.stripe_min == Bytes{65536});
  REQUIRE(states.size() == options().size());
  for (const OptionState& s : states) {
    CAPTURE(std::string(s.option->name));
    CHECK(s.value == s.default_value);
    CHECK_FALSE(s.from_environment);
    CHECK(s.error.empty());
  }
}

TEST_CASE("every option name is unique, ours or NCCL's, and documented by full sentences") {
  std::set<std::string_view> names;
  for (const Option& o : options()) {
    CAPTURE(std::string(o.name));
    CHECK(names.insert(o.name).second);
    CHECK((o.name.starts_with("TWINPATH_") || o.name.starts_with("NCCL_")));
    CHECK(o.doc.ends_with('.'));
    CHECK_FALSE(o.values.empty());
    CHECK_FALSE(o.group.empty());
  }
  for (const UnsupportedOption& u : unsupported_options()) {
    CAPTURE(std::string(u.name));
    CHECK(names.insert(u.name).second);
    CHECK_FALSE(u.reason.empty());
  }
}

TEST_CASE("what an option prints it also reads") {
  const Environment environment{
      {"TWINPATH_FABRIC", "soft"},
      {"TWINPATH_SOFT_HCAS", "a,speed=200,b"},
      {"TWINPATH_SOFT_JOB", "job-1.x_Y"},
      {"TWINPATH_SOFT_POLLING", "sleep"},
      {"TWINPATH_SOFT_DIRECT", "0"},
      {"TWINPATH_SOFT_COPY_THREADS", "3"},
      {"TWINPATH_SOFT_RECORD", "/tmp/commands.jsonl"},
      {"TWINPATH_TUNE", "off"},
      {"TWINPATH_CONNECT_TIMEOUT_MS", "100"},
      {"TWINPATH_STRIPE_MIN", "3m"},
      {"TWINPATH_COUNTERS", "0"},
      {"TWINPATH_METRICS_DIR", "/var/tmp/counters"},
      {"NCCL_IB_HCA", "=mlx5_0:1"},
      {"NCCL_IB_TC", "106"},
      {"NCCL_IB_ADDR_RANGE", "10.1.0.0/16"},
      {"NCCL_IB_ADDR_FAMILY", "AF_INET6"},
      {"NCCL_SOCKET_IFNAME", "^lo,docker"},
      {"NCCL_IB_MERGE_NICS", "0"},
      {"NCCL_IB_QPS_PER_CONNECTION", "32"},
      {"NCCL_IB_ECE_ENABLE", "0"},
      {"NCCL_IB_PKEY_VALUE", "32769"},
      {"NCCL_NET_OPTIONAL_RECV_COMPLETION", "0"},
      {"TWINPATH_FLOW_LABELS", "0"},
      {"NCCL_IB_MQP_RETRY_ALL", "1"},
      {"NCCL_IB_MQP_RETRY_CNT", "5"},
      {"NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20"},
  };
  std::vector<OptionState> states;
  const Config first = read(environment, &states);
  Environment printed;
  for (const OptionState& s : states) {
    CAPTURE(std::string(s.option->name), s.error);
    const bool set = environment.count(std::string(s.option->name)) == 1;
    CHECK(s.from_environment == set);
    if (set) CHECK(s.value == environment.at(std::string(s.option->name)));
    if (set) CHECK(s.value != s.default_value);
    printed[std::string(s.option->name)] = s.value;
  }
  const Config second = read(printed);
  for (const Option& o : options()) CHECK(o.get(first) == o.get(second));
  CHECK(second.fabric == FabricChoice::soft);
  CHECK(second.stripe_min == Bytes{3u << 20});
}

TEST_CASE("every documented range takes its ends and refuses what lies just outside") {
  int ranges = 0;
  for (const Option& o : options()) {
    std::string values(o.values);
    if (values.starts_with("ms, ")) values.erase(0, 4);
    int low = 0, high = 0, used = 0;
    if (std::sscanf(values.c_str(), "%d..%d%n", &low, &high, &used) != 2) continue;
    if (static_cast<std::size_t>(used) != values.size()) continue;
    ++ranges;
    CAPTURE(std::string(o.name));
    Config c;
    std::string why;
    CHECK(o.set(c, std::to_string(low), why));
    CHECK(o.get(c) == std::to_string(low));
    CHECK(o.set(c, std::to_string(high), why));
    CHECK_FALSE(o.set(c, std::to_string(low - 1), why));
    CHECK_FALSE(o.set(c, std::to_string(high + 1), why));
    CHECK(why == "must lie in " + std::to_string(low) + ".." + std::to_string(high));
    CHECK(o.get(c) == std::to_string(high));
  }
  CHECK(ranges == 28);  // the table was read
}

TEST_CASE("text that is not a value is refused and leaves the setting alone") {
  struct Row {
    const char* name;
    const char* text;
    const char* why;
  };
  const Row rows[] = {
      {"TWINPATH_FABRIC", "Verbs", "must be one of auto, verbs, soft"},
      {"TWINPATH_SOFT_POLLING", "poll", "must be one of auto, spin, sleep"},
      {"TWINPATH_TUNE", "on", "must be one of auto, off"},
      {"TWINPATH_SOFT_JOB", "../x", "must be at most 48"},
      {"TWINPATH_SOFT_JOB", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "at most 48"},
      {"TWINPATH_SOFT_CUDA", "2", "must be one of"},
      {"TWINPATH_STRIPE_MIN", "64kb", "must be a byte count"},
      {"TWINPATH_STRIPE_MIN", "-1", "must be a byte count"},
      {"TWINPATH_STRIPE_MIN", "17179869184g", "must be a byte count"},
      {"TWINPATH_STRIPE_MIN", "1025g", "must be at most 1024g"},
      {"NCCL_IB_TIMEOUT", "", "must be an integer"},
      {"NCCL_IB_TIMEOUT", "20 s", "must be an integer"},
      {"NCCL_IB_TIMEOUT", "08", "octal behind a 0"},
      {"NCCL_IB_TIMEOUT", "+-4", "must be an integer"},
      {"NCCL_IB_TIMEOUT", "--4", "must be an integer"},
      {"NCCL_IB_TIMEOUT", "0x", "must be an integer"},
      {"NCCL_IB_TIMEOUT", "99999999999", "must be an integer"},
      {"NCCL_IB_ADDR_FAMILY", "inet", "must be AF_INET or AF_INET6"},
      {"NCCL_IB_ADDR_RANGE", "10.1.0.0", "must be address/prefix"},
      {"NCCL_IB_ADDR_RANGE", "10.1.0.0/33", "must be address/prefix"},
      {"NCCL_IB_ADDR_RANGE", "10.1.0/16", "must be address/prefix"},
      {"NCCL_IB_ADDR_RANGE", "fd00::/129", "must be address/prefix"},
      {"NCCL_SOCKET_FAMILY", "4", "must be AF_INET or AF_INET6"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name, row.text);
    const Option& o = find(row.name);
    Config c;
    std::string why;
    CHECK_FALSE(o.set(c, row.text, why));
    CHECK(why.find(row.why) != std::string::npos);
    CHECK(o.get(c) == o.get(Config{}));
  }
}

TEST_CASE("numbers may be hexadecimal, booleans words, byte counts have units") {
  const Config c = read({{"NCCL_IB_TC", "0x6A"},
                         {"NCCL_IB_DISABLE", "Yes"},
                         {"TWINPATH_SOFT_DIRECT", "off"},
                         {"TWINPATH_STRIPE_MIN", "2G"},
                         {"NCCL_IB_ADDR_RANGE", "fd00::/8"}});
  CHECK(c.ib_tc == 106);
  CHECK(c.ib_disable);
  CHECK_FALSE(c.soft_direct);
  CHECK(c.stripe_min == Bytes{std::uint64_t{2} << 30});
  CHECK(c.ib_addr_range == "fd00::/8");
}

// What strtoll with base 0 makes of it, on every option that is a number or a boolean.
TEST_CASE("numbers are what NCCL takes them for, in every option") {
  struct Row {
    const char* before;
    const char* after;
  };
  const Row rows[] = {{"", " "}, {"", "\r"}, {" ", ""}, {"\t", " \r\n"}, {"+", ""}, {"0", ""}};
  int numbers = 0;
  for (const Option& o : options()) {
    CAPTURE(std::string(o.name));
    std::string why;
    Config plain;
    if (!o.set(plain, "1", why)) continue;
    const std::string wanted = o.get(plain);
    Config number;
    if (!o.set(number, "0x1", why) || o.get(number) != wanted) continue;  // a name, or a path
    ++numbers;
    for (const Row& row : rows) {
      const std::string text = std::string(row.before) + "1" + row.after;
      CAPTURE(text);
      Config c;
      CHECK(o.set(c, text, why));
      CHECK(o.get(c) == wanted);
    }
  }
  CHECK(numbers == 47);  // the table was read
  CHECK(read({{"NCCL_IB_TC", "0152"}}).ib_tc == 106);
  CHECK(read({{"NCCL_IB_TC", "-0x1"}}).ib_tc == -1);
  CHECK(read({{"NCCL_IB_DISABLE", "2"}}).ib_disable);
  CHECK(read({{"NCCL_IB_DISABLE", "00"}, {"NCCL_IB_ECE_ENABLE", " 0x0\r"}}).ib_ece_enable == false);
  CHECK(read({{"TWINPATH_STRIPE_MIN", " 0x10k\r"}}).stripe_min == Bytes{16384});
}

TEST_CASE("blanks around words and lists do not count either") {
  const Config c = read({{"TWINPATH_FABRIC", "soft\r"},
                         {"NCCL_SOCKET_FAMILY", "AF_INET6 "},
                         {"NCCL_SOCKET_IFNAME", "eth0\r"},
                         {"NCCL_NET_GDR_LEVEL", "PHB "},
                         {"TWINPATH_PEER_MODE", "3:proxy\r"},
                         {"NCCL_IB_HCA", " mlx5_0"}});
  CHECK(c.fabric == FabricChoice::soft);
  CHECK(c.socket_family == "AF_INET6");
  CHECK(c.socket_ifname == "eth0");
  CHECK(c.net_gdr_level == "PHB");
  CHECK(c.peer_mode == "3:proxy");
  CHECK(c.ib_hca == "mlx5_0");
}

TEST_CASE("what cannot be seen in a refused value is shown as an escape") {
  std::vector<OptionState> states;
  (void)read({{"NCCL_IB_TIMEOUT", "2\r0\x1b[2J"}}, &states);
  int errors = 0;
  for (const OptionState& s : states) {
    if (s.error.empty()) continue;
    ++errors;
    CHECK(s.error.starts_with("'2\\r0\\x1b[2J' is refused"));
  }
  CHECK(errors == 1);
}

TEST_CASE("a name as a shell has it, or a file of NCCL's, is a mistake that is told") {
  struct Row {
    const char *name, *meant;  // null: nothing is told
  };
  const Row rows[] = {{" TWINPATH_FABRIC", "TWINPATH_FABRIC"},
                      {"TWINPATH_FABRIC ", "TWINPATH_FABRIC"},
                      {"NCCL_IB_HCA\t", "NCCL_IB_HCA"},
                      {"export TWINPATH_FABRIC", "TWINPATH_FABRIC"},
                      {" export\tNCCL_IB_HCA", "NCCL_IB_HCA"},
                      {"-x NCCL_IB_HCA", "NCCL_IB_HCA"},
                      {"\"TWINPATH_FABRIC\"", "TWINPATH_FABRIC"},
                      {"\xef\xbb\xbfTWINPATH_FABRIC", "TWINPATH_FABRIC"},
                      {"twinpath_fabric", "TWINPATH_FABRIC"},
                      {"export TWINPATH_FABRICS", "TWINPATH_FABRIC"},
                      {"twinpath_root", nullptr},  // may be anybody's
                      {" # TWINPATH_FABRIC", nullptr},
                      {"MY_NCCL_IB_HCA", nullptr},
                      {"export PATH_OF_MINE", nullptr}};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const ScopedEnv set(row.name, "x");
    const std::vector<UnreadSetting> unread = unread_settings();
    REQUIRE(unread.size() == (row.meant == nullptr ? 0 : 1));
    if (row.meant == nullptr) continue;
    CHECK(unread.front().mistake);
    CHECK(unread.front().text.find(std::string("did you mean ") + row.meant + "?") !=
          std::string::npos);
  }
}

TEST_CASE("an empty variable counts as not set") {
  std::vector<OptionState> states;
  const Config c =
      read({{"TWINPATH_SOFT_HCAS", ""}, {"NCCL_IB_TIMEOUT", ""}, {"NCCL_IB_TC", " \r"}}, &states);
  CHECK(c.soft_hcas == "soft0");
  for (const OptionState& s : states) CHECK((s.error.empty() && !s.from_environment));
  for (const char* text : {"", " \r", " x"}) {
    const ScopedEnv unknown("TWINPATH_NO_OPTION", text);
    CHECK(unread_settings().empty() == (std::string(text).find('x') == std::string::npos));
  }
}

TEST_CASE("a refused value is reported with variable, text, what is allowed and the default") {
  ScopedEnv bad("NCCL_IB_TIMEOUT", "99");
  test::LogCapture log;
  const Config c = config_from_environment();
  CHECK(c.ib_timeout == 20);
  REQUIRE(log.warnings().size() == 1);
  CHECK(
      log.warnings()[0] ==
      "NET/Twinpath: NCCL_IB_TIMEOUT='99' is refused: must lie in 0..31; keeping the default '20'");
}

TEST_CASE("an unknown option of ours is reported with the nearest name") {
  ScopedEnv typo("TWINPATH_FABRICS", "soft");
  ScopedEnv tests("TWINPATH_TEST_SEED", "1");
  ScopedEnv scripts("TWINPATH_NCCL", "/nowhere/libnccl.so.2");
  test::LogCapture log;
  (void)config_from_environment();
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "TWINPATH_FABRICS is set but no such option exists"));
  CHECK(log.has(LogLevel::warn, "did you mean TWINPATH_FABRIC?"));
}

TEST_CASE("a setting with its old name counts where the new one is not set, with a warning") {
  struct Row {
    const char *before, *text, *now, *other;
  };
  for (const Row& row :
       {Row{"TWINPATH_GIN_ENGINE", "sleep", "TWINPATH_GIN_POLLING", "spin"},
        Row{"TWINPATH_OPTIONAL_RECV_COMPLETION", "0", "NCCL_NET_OPTIONAL_RECV_COMPLETION", "1"},
        Row{"TWINPATH_SOFT_ENGINE", "sleep", "TWINPATH_SOFT_POLLING", "spin"}}) {
    CAPTURE(row.before);
    const Option& option = find(row.now);
    const ScopedEnv old(row.before, row.text);
    test::LogCapture log;
    CHECK(option.get(config_from_environment()) == row.text);
    CHECK(log.warnings() == std::vector<std::string>{
                                std::string("NET/Twinpath: ") + row.before + " is called " +
                                row.now + " now: this version still reads it, the next will not"});
    const ScopedEnv both(row.now, row.other);
    CHECK(option.get(config_from_environment()) == row.other);
    REQUIRE(log.warnings().size() == 2);
    CHECK(log.warnings()[1].find(" is not read, as ") != std::string::npos);
  }
}

TEST_CASE("NCCL's settings that have no effect here are named once, at info") {
  ScopedEnv one("NCCL_IB_OOO_RQ", "1");
  ScopedEnv two("NCCL_IB_NEVER_HEARD_OF", "1");
  ScopedEnv other("NCCL_DEBUG_FILE", "/dev/null");
  test::LogCapture log;
  (void)config_from_environment();
  CHECK(log.warnings().empty());
  CHECK(log.lines().size() == 2);
  CHECK(log.has(LogLevel::info, "NCCL_IB_OOO_RQ is set but has no effect here: out-of-order"));
  CHECK(log.has(LogLevel::info, "NCCL_IB_NEVER_HEARD_OF is set but this plugin does not know it"));
}

TEST_CASE(
    "every variable of NCCL's InfiniBand transport is an option, or named as without effect") {
  // Of 2.19 to 2.32, without what NCCL itself reads and a plugin never sees.
  const char* names[] = {"ADAPTIVE_ROUTING",
                         "ADDR_FAMILY",
                         "ADDR_RANGE",
                         "AR_THRESHOLD",
                         "CUDA_SUPPORT",
                         "DATA_DIRECT",
                         "DEVICE_PCI_ORDER",
                         "DISABLE",
                         "ECE_ENABLE",
                         "EVENT_BASED_LB",
                         "EVENT_BASED_LB_REMOTE",
                         "FIFO_TC",
                         "GID_INDEX",
                         "HCA",
                         "MERGE_NICS",
                         "MERGE_VFS",
                         "MQP_RETRY_ALL",
                         "MQP_RETRY_CNT",
                         "MQP_RETRY_SLEEP_MSEC",
                         "OOO_RQ",
                         "PCI_RELAXED_ORDERING",
                         "PKEY",
                         "PKEY_VALUE",
                         "PREPOST_RECEIVE_WORK_REQUESTS",
                         "QPS_PER_CONNECTION",
                         "QUERY_PORT_SPEED",
                         "RAIL_POLICY",
                         "RECEIVER_SIDE_MATCHING_SCHEME",
                         "RESILIENCY_PORT_FAILOVER",
                         "RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS",
                         "RESILIENCY_PORT_FAILOVER_PROBE_DELAY",
                         "RESILIENCY_PORT_RECOVERY",
                         "RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT",
                         "RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL",
                         "RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE",
                         "RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE",
                         "RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT",
                         "RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX",
                         "RESILIENCY_PORT_RECOVERY_START_DELAY",
                         "RETRY_CNT",
                         "RETURN_ASYNC_EVENTS",
                         "ROCE_VERSION_NUM",
                         "ROUTABLE_FLID_GID_INDEX",
                         "SL",
                         "SPLIT_DATA_ON_QPS",
                         "SUBNET_AWARE_ROUTING",
                         "SUBNET_PREFIX_LEN",
                         "TC",
                         "TIMEOUT",
                         "USE_INLINE",
                         "WARN_RAIL_LOCAL",
                         "WQE_LATENCY_REPORT",
                         "WQE_LATENCY_THRESHOLD_NS"};
  for (const char* name : names) {
    const std::string full = std::string("NCCL_IB_") + name;
    CAPTURE(full);
    int found = 0;
    for (const Option& o : options()) found += o.name == full ? 1 : 0;
    for (const UnsupportedOption& u : unsupported_options()) found += u.name == full ? 1 : 0;
    CHECK(found == 1);
  }
}

TEST_CASE("the Markdown table has one row per option and one heading per group") {
  const std::string text = options_markdown();
  std::set<std::string_view> groups;
  for (const Option& o : options()) {
    CAPTURE(std::string(o.name));
    groups.insert(o.group);
    const std::string row = "| `" + std::string(o.name) + "` | ";
    const std::size_t at = text.find(row);
    REQUIRE(at != std::string::npos);
    CHECK(text.find(row, at + 1) == std::string::npos);
  }
  std::size_t headings = 0;
  for (std::size_t at = 0; (at = text.find("|---|---|---|---|", at)) != std::string::npos; ++at) {
    ++headings;
  }
  CHECK(headings == groups.size());
  CHECK(text.find("| `NCCL_IB_TIMEOUT` | 0..31 | `20` | ") != std::string::npos);
  for (const UnsupportedOption& u : unsupported_options()) {
    CAPTURE(std::string(u.name));
    const std::size_t at = text.find("`" + std::string(u.name) + "`");
    REQUIRE(at != std::string::npos);
    const std::string row = text.substr(at, text.find('\n', at) - at);
    CHECK(row.ends_with(" | " + std::string(u.reason) + " |"));
  }
}

}  // namespace twinpath
