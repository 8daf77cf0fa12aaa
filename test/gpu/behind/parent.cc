#include "test/gpu/behind/parent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "plugin/base/clock.h"
#include "test/gpu/behind/batch.h"
#include "tools/common/failure.h"

namespace twinpath::behind {
namespace {

// Asked of another process: whoever starts CUDA cannot be trusted to end.
int count_gpus(const Options& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw tools::Failure("no pipe: see ulimit -n");
  const UniqueFd answer(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t pid = start_child(options, {"--count", "--report-fd", "3"}, theirs.get());
  theirs.reset();
  std::string text;
  const std::int64_t deadline = now_ns() + 60 * kSecond;
  for (char c; now_ns() < deadline;) {
    pollfd p{answer.get(), POLLIN, 0};
    if (poll(&p, 1, 1000) == 0) continue;
    if (read(answer.get(), &c, 1) != 1) break;
    text += c;
  }
  (void)kill(pid, SIGKILL);
  (void)waitpid(pid, nullptr, 0);
  return std::atoi(text.c_str());
}

void run_layout(const Options& options, Layout layout, int gpus, Report& report) {
  std::vector<Case> left = options.cases();
  while (!left.empty()) {
    const std::size_t take = options.fresh ? 1 : left.size();
    Batch batch(options, layout, {left.begin(), left.begin() + static_cast<std::ptrdiff_t>(take)},
                gpus);
    batch.run(report);
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(batch.finished()));
    if (batch.setup_trouble().empty()) continue;
    // It would not go better the next time.
    for (const Case& c : left) {
      Result result;
      result.layout = layout;
      result.which = c;
      result.detail = batch.setup_trouble();
      report.add(result);
    }
    return;
  }
}

}  // namespace

int run_parent(const Options& options) {
  Options all = options;
  if (all.gpus == 0) all.gpus = count_gpus(options);
  if (all.gpus == 0) {
    std::fprintf(stderr,
                 "behind: this host shows no GPU; see nvidia-smi and "
                 "CUDA_VISIBLE_DEVICES\n");
    return kExitMissing;
  }
  Report report(all, all.gpus);
  for (const Layout layout : all.layouts) run_layout(all, layout, all.gpus, report);
  report.finish();
  return report.good() ? kExitOk : kExitBad;
}

}  // namespace twinpath::behind
