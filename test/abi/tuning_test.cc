// What is set for NCCL on the soft HCA, and how it gets into the environment beside threads that
// read it.
#include "plugin/nccl/tuning.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "plugin/nccl/environment.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {
namespace {

using Variables = std::map<std::string, std::string>;

Config soft_config() {
  Config config;
  config.fabric = FabricChoice::soft;
  return config;
}

Variables chosen(const Config& config, const Variables& user, std::string* kept = nullptr,
                 const std::string& tuner = {}) {
  const Tuning tuning = choose_tuning(
      config,
      [&](const char* name) -> const char* {
        const auto found = user.find(name);
        return found == user.end() ? nullptr : found->second.c_str();
      },
      [&] { return tuner; });
  if (kept != nullptr) {
    for (const std::string& k : tuning.kept) *kept += (kept->empty() ? "" : " ") + k;
  }
  Variables out;
  for (const Setting& s : tuning.settings) {
    CHECK(out.emplace(s.name, s.value).second);
  }
  return out;
}

const Variables kAll = {{"NCCL_NET_GDR_LEVEL", "SYS"},       {"NCCL_MIN_NCHANNELS", "16"},
                        {"NCCL_BUFFSIZE", "16777216"},       {"NCCL_P2P_NET_CHUNKSIZE", "524288"},
                        {"NCCL_MIN_P2P_NCHANNELS", "16"},    {"NCCL_NCHANNELS_PER_NET_PEER", "16"},
                        {"NCCL_P2P_PER_CHANNEL_NET_BW", "3"}};

Variables all_but(std::initializer_list<const char*> names) {
  Variables out = kAll;
  for (const char* name : names) CHECK(out.erase(name) == 1);
  return out;
}

// The environment is given back as it was.
class SavedEnvironment {
 public:
  SavedEnvironment() : array_(environ) {}
  ~SavedEnvironment() { environ = array_; }
  SavedEnvironment(const SavedEnvironment&) = delete;
  SavedEnvironment& operator=(const SavedEnvironment&) = delete;

 private:
  char** array_;
};

int count_of(std::string_view start) {
  int count = 0;
  for (char** at = environ; *at != nullptr; ++at) count += std::string_view(*at).starts_with(start);
  return count;
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(none)" : value;
}

}  // namespace

TEST_CASE("tuning is for the soft HCA, less for host memory only, and can be switched off") {
  CHECK(chosen(soft_config(), {}) == kAll);
  for (const FabricChoice other : {FabricChoice::automatic, FabricChoice::verbs}) {
    Config config = soft_config();
    config.fabric = other;
    CHECK(chosen(config, {}).empty());
  }
  Config config = soft_config();
  config.tune = TuneChoice::off;
  CHECK(chosen(config, {}).empty());
  config = soft_config();
  config.ib_disable = true;
  CHECK(chosen(config, {}).empty());
  config = soft_config();
  config.soft_cuda = SoftCuda::off;
  CHECK(chosen(config, {}) == Variables{{"NCCL_BUFFSIZE", "8388608"}});
  CHECK(chosen(config, {{"NCCL_NET_GDR_LEVEL", "LOC"}}, nullptr, "/somewhere/tuner.so") ==
        Variables{{"NCCL_BUFFSIZE", "8388608"}, {"NCCL_TUNER_PLUGIN", "/somewhere/tuner.so"}});
  std::string kept;
  CHECK(chosen(config, {{"NCCL_TUNER_PLUGIN", "none"}}, &kept, "/somewhere/tuner.so") ==
        Variables{{"NCCL_BUFFSIZE", "8388608"}});
  CHECK(kept == "NCCL_TUNER_PLUGIN=none");
  CHECK(chosen(config, {{"NCCL_BUFFSIZE", "4194304"}}).empty());
  config = soft_config();
  config.mode = ModeChoice::stage;
  CHECK(chosen(config, {}).empty());
}

TEST_CASE("adapters that were given a place are judged by it") {
  for (const char* hcas : {"soft0,pci=0000:17:00.0", "soft0,soft1,place=numa=1"}) {
    Config config = soft_config();
    config.soft_hcas = hcas;
    CHECK(chosen(config, {}) == all_but({"NCCL_NET_GDR_LEVEL"}));
  }
}

TEST_CASE("the user's settings win, and those that speak of the same thing") {
  struct Row {
    Variables user;
    Variables chosen;
    const char* kept;
  };
  const Row rows[] = {
      {{{"NCCL_NET_GDR_LEVEL", "LOC"}}, all_but({"NCCL_NET_GDR_LEVEL"}), "NCCL_NET_GDR_LEVEL=LOC"},
      {{{"NCCL_MIN_NCHANNELS", "8"}}, all_but({"NCCL_MIN_NCHANNELS"}), "NCCL_MIN_NCHANNELS=8"},
      {{{"NCCL_MAX_NCHANNELS", "4"}}, all_but({"NCCL_MIN_NCHANNELS"}), "NCCL_MAX_NCHANNELS=4"},
      {{{"NCCL_MIN_NRINGS", "4"}}, all_but({"NCCL_MIN_NCHANNELS"}), "NCCL_MIN_NRINGS=4"},
      {{{"NCCL_MAX_CTAS", "4"}}, all_but({"NCCL_MIN_NCHANNELS"}), "NCCL_MAX_CTAS=4"},
      // A chunk may be an eighth of the buffer.
      {{{"NCCL_BUFFSIZE", "1048576"}},
       all_but({"NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"}),
       "NCCL_BUFFSIZE=1048576"},
      {{{"NCCL_P2P_NET_CHUNKSIZE", "131072"}},
       all_but({"NCCL_P2P_NET_CHUNKSIZE"}),
       "NCCL_P2P_NET_CHUNKSIZE=131072"},
      {{{"NCCL_MIN_P2P_NCHANNELS", "4"}},
       all_but({"NCCL_MIN_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER",
                "NCCL_P2P_PER_CHANNEL_NET_BW"}),
       "NCCL_MIN_P2P_NCHANNELS=4"},
      {{{"NCCL_MAX_P2P_NCHANNELS", "4"}},
       all_but({"NCCL_MIN_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER",
                "NCCL_P2P_PER_CHANNEL_NET_BW"}),
       "NCCL_MAX_P2P_NCHANNELS=4"},
      {{{"NCCL_NCHANNELS_PER_NET_PEER", "2"}},
       all_but({"NCCL_NCHANNELS_PER_NET_PEER", "NCCL_P2P_PER_CHANNEL_NET_BW"}),
       "NCCL_NCHANNELS_PER_NET_PEER=2"},
      // Empty is not set, and what has nothing to do with it does not matter.
      {{{"NCCL_BUFFSIZE", ""}, {"NCCL_DEBUG", "INFO"}}, kAll, ""},
      {kAll, {}, nullptr},
  };
  for (const Row& row : rows) {
    CAPTURE(row.user.begin()->first);
    std::string kept;
    CHECK(chosen(soft_config(), row.user, &kept) == row.chosen);
    if (row.kept != nullptr) CHECK(kept == row.kept);
  }
}

TEST_CASE("the tuner is named where channels and reach are ours") {
  const std::string path = "/somewhere/tuner.so";
  Variables with = kAll;
  with["NCCL_TUNER_PLUGIN"] = path;
  struct Row {
    Variables user;
    bool named;
    const char* kept;
  };
  const Row rows[] = {
      {{}, true, ""},
      {{{"NCCL_NET_GDR_LEVEL", "sys"}}, true, "NCCL_NET_GDR_LEVEL=sys"},
      {{{"NCCL_NET_GDR_LEVEL", "LOC"}}, false, "NCCL_NET_GDR_LEVEL=LOC"},
      {{{"NCCL_MAX_NCHANNELS", "2"}}, false, "NCCL_MAX_NCHANNELS=2"},
      {{{"NCCL_BUFFSIZE", "4194304"}}, true, nullptr},
      {{{"NCCL_TUNER_PLUGIN", "none"}}, false, "NCCL_TUNER_PLUGIN=none"},
      {{{"NCCL_TUNER_PLUGIN", ""}}, true, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.user.empty() ? "" : row.user.begin()->first);
    std::string kept;
    const Variables got = chosen(soft_config(), row.user, &kept, path);
    CHECK(got.contains("NCCL_TUNER_PLUGIN") == row.named);
    if (row.named) CHECK(got.at("NCCL_TUNER_PLUGIN") == path);
    if (row.kept != nullptr) CHECK(kept == row.kept);
  }
  Config off = soft_config();
  off.tune = TuneChoice::off;
  CHECK(chosen(off, {}, nullptr, path).empty());
}

TEST_CASE("a tuner that is not beside the plugin is a warning, not a setting") {
  LogCapture log;
  CHECK(find_tuner("/nonexistent").empty());
  CHECK(log.has(LogLevel::warn, "/nonexistent/libnccl-tuner-twinpath.so is not there"));
}

TEST_CASE("one line names what was set and what was kept") {
  const SavedEnvironment saved;
  LogCapture log;
  Tuning tuning{{{"TWINPATH_TEST_A", "1"}, {"TWINPATH_TEST_B", "2"}}, {"NCCL_BUFFSIZE=7"}};
  apply_tuning(tuning);
  CHECK(log.has(LogLevel::info, "TWINPATH_TEST_A=1 TWINPATH_TEST_B=2; kept: NCCL_BUFFSIZE=7"));
  CHECK(log.lines().size() == 1);
  CHECK(value_of("TWINPATH_TEST_A") == "1");
  log.clear();
  apply_tuning({});
  CHECK(log.lines().empty());
}

TEST_CASE("additions to the environment keep the rest, and a value that is there") {
  const SavedEnvironment saved;
  ::setenv("TWINPATH_TEST_THERE", "user", 1);
  ::setenv("TWINPATH_TEST_EMPTY", "", 1);
  ::setenv("TWINPATH_TEST_NEWER", "longer name", 1);
  const std::string path = value_of("PATH");
  const int before = count_of("");
  const Setting settings[] = {{"TWINPATH_TEST_THERE", "ours"},
                              {"TWINPATH_TEST_EMPTY", "full"},
                              {"TWINPATH_TEST_NEW", "new"}};
  REQUIRE(add_to_environment(settings));
  CHECK(value_of("TWINPATH_TEST_THERE") == "user");
  CHECK(value_of("TWINPATH_TEST_EMPTY") == "full");
  CHECK(value_of("TWINPATH_TEST_NEW") == "new");
  CHECK(value_of("TWINPATH_TEST_NEWER") == "longer name");
  CHECK(value_of("PATH") == path);
  CHECK(count_of("TWINPATH_TEST_EMPTY=") == 1);
  CHECK(count_of("") == before + 1);
  // What libc does with an array that is not its own.
  ::setenv("TWINPATH_TEST_LATER", "later", 1);
  ::setenv("TWINPATH_TEST_NEW", "changed", 1);
  ::unsetenv("TWINPATH_TEST_EMPTY");
  CHECK(value_of("TWINPATH_TEST_LATER") == "later");
  CHECK(value_of("TWINPATH_TEST_NEW") == "changed");
  CHECK(value_of("TWINPATH_TEST_EMPTY") == "(none)");
  CHECK(value_of("PATH") == path);
}

TEST_CASE("threads that read the environment see all of it all the time") {
  const SavedEnvironment saved;
  ::setenv("TWINPATH_TEST_ALWAYS", "here", 1);
  // What getenv returned stays readable, too.
  const char* const early = std::getenv("TWINPATH_TEST_ALWAYS");
  std::atomic<bool> stop{false};
  std::atomic<int> missed{0}, looks{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const char* value = std::getenv("TWINPATH_TEST_ALWAYS");
        if (value == nullptr || std::strcmp(value, "here") != 0) ++missed;
        ++looks;
      }
    });
  }
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back("TWINPATH_TEST_ROUND_" + std::to_string(i));
  for (const std::string& name : names) {
    const Setting one[] = {{name.c_str(), "x"}};
    CHECK(add_to_environment(one));
  }
  while (looks.load() < 1000) std::this_thread::yield();
  stop = true;
  for (std::thread& t : readers) t.join();
  CHECK(missed.load() == 0);
  CHECK(std::string(early) == "here");
  CHECK(count_of("TWINPATH_TEST_ROUND_") == 200);
}

}  // namespace twinpath::test
