#pragma once
// What `behind` is asked to do: which calls, behind all-reduces of which sizes, by ranks that are
// threads or processes.
#include <cstddef>
#include <string>
#include <vector>

namespace twinpath::behind {

enum ExitCode : int {
  kExitOk = 0,
  kExitBad = 1,      // a case hung, failed, or had wrong data
  kExitUsage = 2,    // bad option
  kExitMissing = 3,  // no GPU, no NCCL
};

// How the ranks live together.
enum class Layout {
  threads,    // one process, a thread for each GPU
  group,      // one process, one thread that drives all GPUs in NCCL groups
  processes,  // a process for each GPU
};
const char* name_of(Layout layout);

// The stream that the all-reduce is on.
enum class StreamKind {
  blocking,     // one that the default stream waits for
  nonblocking,  // cudaStreamNonBlocking
  legacy,       // the default stream itself
};

// What the call is made behind.
enum class Work {
  all_reduce,  // ncclAllReduce
  gin,         // the same by a kernel that puts through GIN
};

struct Case {
  std::string call;
  std::size_t bytes = 0;  // of the all-reduce
  std::string text() const;
};

struct Options {
  std::vector<Layout> layouts;
  std::vector<std::string> calls;
  std::vector<std::size_t> sizes;
  int rounds = 40;
  int ahead = 1;  // all-reduces in front of the call
  int gpus = 0;   // 0: all that there are
  double limit_s = 20;
  double setup_limit_s = 90;
  StreamKind stream = StreamKind::blocking;
  Work work = Work::all_reduce;
  std::string nccl, plugin;
  bool json = false;
  bool list = false;
  bool fresh = false;  // new processes for every case

  // A rank that somebody else starts.
  int rank = -1, ranks = 0;
  std::string id_file;

  // What the parent tells its children.
  bool count = false;      // print the number of GPUs
  int report_fd = 1;       // where a rank's lines go
  int exporter = -1;       // play a process that shares memory of this GPU
  std::string cases_text;  // "call@bytes,..." in place of calls and sizes
  std::string child;       // program in place of this one, for tests of the parent

  std::vector<Case> cases() const;
};

// False: the program ends with `exit_code`.  Throws tools::BadUsage.
bool parse_options(int argc, char** argv, Options& out, int& exit_code);

// The arguments that a child of this layout gets, its own place left out.
std::vector<std::string> child_arguments(const Options& options, Layout layout,
                                         const std::vector<Case>& cases);

}  // namespace twinpath::behind
