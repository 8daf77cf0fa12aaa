#pragma once
// What the user asked for, parsed and checked.  Knows nothing of CUDA.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace twinpath::gda_perf {

// Of the JSON document: tools/JSON.md says when it changes.
inline constexpr int kSchema = 2;

// The last three need device headers of NCCL 2.30.7 or newer: only if asked for by name.
enum class Test {
  pingpong,
  putvalue,
  signal,
  putflush,
  counter,
  rate,
  bw,
  counters,
  wpingpong,
  wsignal,
  get
};
const char* name_of(Test test);

inline constexpr int kMaxBlocks = 32;
inline constexpr std::size_t kRateMessageBytes = 8;

struct Options {
  int gpus = 0;  // 0: two, or one where there is only one
  std::vector<Test> tests;
  std::size_t min_bytes = 0, max_bytes = 0;  // 0: each test's own
  std::size_t factor = 4;
  unsigned iterations = 2000;
  unsigned warmup = 200;
  std::vector<int> blocks{1, 2, 4, 8, 16, 32};
  std::vector<int> bw_blocks{1, 4};
  int contexts = 4;
  int communicators = 1;
  std::size_t window = 64;
  std::size_t volume = std::size_t{512} << 20;
  int repetitions = 5;
  bool json = false;
  std::string json_file;  // empty: stdout
  std::string plot;       // file; empty: none
  double timeout_s = 60;
  double wait_s = 10;
  std::string nccl, plugin;

  // Message sizes of one test, ascending; a single 0 where it has none.
  std::vector<std::size_t> sizes(Test test) const;
  // Bytes that one end needs to send from, and as many to receive into.
  std::size_t area_bytes() const;
  // Signals in windows are asked for.
  bool window_signals() const;
  // A test that NCCL has since 2.30.7 is asked for.
  bool newer_tests() const;
  // How many lines the report will have.
  std::size_t points() const;
};

// How one line of the bandwidth test is made up.
struct StreamPlan {
  std::uint64_t messages = 0;  // of one repetition, all blocks together
  std::uint64_t slots = 1;     // places they go round over
};
StreamPlan plan_stream(const Options& options, std::size_t bytes, int blocks);

// Messages that each of `blocks` posts in the rate test.
std::uint64_t rate_messages(const Options& options, int blocks);

// What NCCL_NET_PLUGIN has to become: the plugin of --plugin, else that of the build or the
// installation this program belongs to.  Empty: it stays as it is.
std::string plugin_for_nccl(const Options& options);

// Prints help or the complaint and sets `exit_code` when the program has to end at once.
bool parse_options(int argc, char** argv, Options& out, int& exit_code);

}  // namespace twinpath::gda_perf
