#pragma once
// net_perf's command line as a value.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace twinpath::tools {

// Of the JSON document: tools/JSON.md says when it changes.
inline constexpr int kSchema = 3;

enum class Test { latency, bw, bibw, rate, group, step, conns, solo, callgrind };
const char* test_name(Test t);
const std::vector<std::pair<std::string, Test>>& test_names();

// How the client drives a connection; see --help.
enum class LoopKind { window, one, group, poll };
const char* loop_name(LoopKind k);
const std::vector<std::pair<std::string, LoopKind>>& loop_names();

struct Options {
  std::string plugin;  // resolved path
  // The plugin to compare with, resolved; empty: none.  Rounds of each plugin in turn.
  std::string against;
  int rounds = 5;
  int abi = 0;  // 0: newest
  Test test = Test::latency;
  std::vector<std::size_t> sizes;
  std::size_t iters = 0;  // per repetition; 0: chosen by size
  std::size_t warmup = 0;
  bool warmup_given = false;
  int repeats = 10;
  int window = 16;
  bool window_given = false;
  LoopKind loop = LoopKind::window;
  std::vector<int> connections{1};
  int group = 1;
  int workers = 2;
  bool threads = false;
  std::vector<std::string> devices{"0"};
  std::vector<int> gpus;
  bool vmm = true;
  bool dmabuf = false;
  bool verify = true;
  bool optional_recv = false;
  unsigned yield_every = 0;  // idle polls between yields of the core; 0: never
  bool poll_chosen = false, processes_given = false;
  bool json = false;
  bool histogram = false;
  std::string plot;  // file; empty: none
  bool verbose = false;
  double timeout_s = 120;

  // A run whose workers another program started, on one host or several; see job.h.
  std::string place;  // "0/2", by hand
  std::string rendezvous;
  bool no_mpi = false;
  std::vector<int> job;  // workers in all, on this host, hosts; empty: all workers are ours
  bool one_clock() const { return job.empty() || job[2] == 1; }

  // A worker that the parent started: its rank and its sockets.  Of a comparison, `plugin` is the
  // one whose turn it is, and `timeout_s` what is left.
  int rank = -1, control_fd = -1, peer_fd = -1, said_fd = -1;
};

// How many messages one repetition moves.
std::size_t iterations(const Options& o, std::size_t size);

// False: the program should end with `exit_code` (help, version or a usage error, already
// printed).
bool parse_options(int argc, char** argv, Options& out, int& exit_code);
nlohmann::json options_json(const Options& o);

// How often an idle worker gives its core away, where --poll leaves it open; `busy` workers share
// this host.
unsigned yield_interval(int busy);
// A job of that many workers: what of `o` follows from it.  Throws BadUsage.
void take_job(Options& o, const std::vector<int>& job);

}  // namespace twinpath::tools
