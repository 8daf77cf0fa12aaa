#pragma once
// The command line of twinpath-topo.
#include <string>

#include "tools/topo/input.h"

namespace twinpath::tools::topo {

enum class Command { matrix, why, check, tree, dump, probe };

struct Options {
  Command command = Command::matrix;
  InputOptions input;
  std::string peer;           // another machine's capture
  std::string platform_file;  // empty: TWINPATH_PLATFORM_FILE on this node
  bool json = false;
  std::string svg, png;  // write a picture there
  std::string nccl_xml;  // write NCCL's topology XML there
  std::string gpu, hca;  // why
  std::string out;       // dump
  bool raw = false;      // dump: keep GUIDs and names
  bool strict = false;   // check: unknown counts as a warning
  // check on several hosts
  std::string hosts, ssh = "ssh -o BatchMode=yes";
  std::string rank, rendezvous;
  bool ignore_launcher = false;
  double patience_s = 10;
  std::string archive;  // for a bug report
  bool anonymous = false;
};

inline constexpr int kBadArguments = 3;

// False and `exit_code` when there is nothing to do: --help, --version, bad arguments.
bool parse_options(int argc, char** argv, Options& options, int& exit_code);

}  // namespace twinpath::tools::topo
