#pragma once
// What the user asked for, parsed and checked; the same in the launcher and in every rank.
#include <cstddef>
#include <string>
#include <vector>

#include "tools/coll_perf/collective.h"
#include "tools/coll_perf/types.h"

namespace twinpath::coll {

// Of the JSON document: tools/JSON.md says when it changes.
inline constexpr int kSchema = 2;

enum class Scenario { none, split, many_comms, again, abort, kill };
enum class Algorithm { ring, tree };

struct Options {
  int cpu_ranks = 0;  // 0: GPUs
  std::vector<Algorithm> algorithms;
  std::vector<Collective> collectives;
  std::vector<std::size_t> sizes;
  std::vector<DataType> types;
  ReduceOp op = ReduceOp::sum;
  int iterations = 20;
  int warmup = 5;
  int checks = 1;
  bool json = false;
  std::string plot;  // file; empty: none
  double timeout_s = 120;
  std::vector<int> gpus;  // ordinals by local rank; empty: 0, 1, ...
  int gpu_count = 0;      // 0: all
  bool threads = false;
  bool no_mpi = false;
  bool cuda_malloc = false;
  bool registered = false;
  bool graph = false;
  std::string nccl;    // library path
  std::string plugin;  // as given
  bool via_plugin = false;
  bool show_env = false;
  std::string rendezvous;
  std::string rank;  // "0/2", of a job started by hand
  Scenario scenario = Scenario::none;
  int comms = 16;
  std::vector<std::string> net_devices{"0"};  // by rank, going round

  std::size_t max_bytes() const { return sizes.back(); }
};

// Prints help or the complaint and sets `exit_code` when the program has to end at once.
bool parse_options(int argc, char** argv, Options& out, int& exit_code);

}  // namespace twinpath::coll
