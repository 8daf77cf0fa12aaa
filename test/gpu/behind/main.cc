// behind: calls of CUDA right behind an all-reduce of NCCL.  What hangs here hangs in real
// programs; see options.cc for what it does.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "test/gpu/behind/calls.h"
#include "test/gpu/behind/child.h"
#include "test/gpu/behind/exporter.h"
#include "test/gpu/behind/options.h"
#include "test/gpu/behind/parent.h"
#include "tools/common/failure.h"

namespace twinpath::behind {
namespace {

int list_calls() {
  for (const Call& call : all_calls()) std::printf("%-22s %s\n", call.name, call.what);
  return kExitOk;
}

int print_count(int fd) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  return dprintf(fd, "%d\n", count) > 0 ? kExitOk : kExitMissing;
}

int run(int argc, char** argv) {
  Options options;
  int code = kExitOk;
  if (!parse_options(argc, argv, options, code)) return code;
  if (options.list) return list_calls();
  if (options.count) return print_count(options.report_fd);
  if (options.exporter >= 0) return play_exporter(options.exporter);
  const bool child = options.rank >= 0 || !options.cases_text.empty();
  return child ? run_ranks(options) : run_parent(options);
}

}  // namespace
}  // namespace twinpath::behind

int main(int argc, char** argv) {
  try {
    return twinpath::behind::run(argc, argv);
  } catch (const twinpath::tools::BadUsage& error) {
    std::fprintf(stderr, "behind: %s\n", error.what());
    return twinpath::behind::kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "behind: %s\n", error.what());
    return twinpath::behind::kExitMissing;
  }
}
