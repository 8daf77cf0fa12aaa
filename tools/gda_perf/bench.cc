#include "tools/gda_perf/bench.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>

#include "tools/common/pattern.h"
#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {

Watchdog::Watchdog(double limit_s) : limit_s_(limit_s), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::step(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    what_ = what;
    ++steps_;
  }
  changed_.notify_all();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    const std::uint64_t seen = steps_;
    const bool moved = changed_.wait_for(lock, std::chrono::duration<double>(limit_s_),
                                         [&] { return over_ || steps_ != seen; });
    if (!moved) {
      give_up(kExitFailed, what_ + " did not end within " +
                               std::to_string(static_cast<int>(limit_s_)) +
                               " s: a put, a flush or a call of NCCL never returned; see the log "
                               "with NCCL_DEBUG=INFO, or give more time with --timeout");
    }
  }
}

void give_up(ExitCode code, const std::string& why) {
  // The first one speaks; the others' complaints are its consequences.
  static std::mutex once;
  once.lock();
  std::fprintf(stderr, "gda_perf: %s\n", why.c_str());
  std::fflush(nullptr);
  _exit(code);
}

void in_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] {
      try {
        work(i);
      } catch (const ToolError& error) {
        give_up(error.code(), error.what());
      } catch (const std::exception& error) {
        give_up(kExitFailed, error.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

Spent Spent::now() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime),
          std::chrono::duration<double>(wall).count()};
}

void Part::prepare(const std::string& what, std::size_t fill) {
  bench.meet();
  if (index == 0) {
    bench.watchdog.step(what);
    bench.report.progress(what);
  }
  const Side& side = player.side();
  const cudaStream_t stream = player.stream();
  player.clear_outcomes();
  check(launch_reset(side, stream), what);
  check(cudaMemsetAsync(player.gate(), 0, sizeof *player.gate(), stream), what);
  if (fill != 0) {
    check(launch_fill(side.send, fill / 8, tools::pattern_seed(side.half, fill), stream), what);
    check(cudaMemsetAsync(side.receive, 0, fill, stream), what);
  }
  check(cudaStreamSynchronize(stream), what);
  bench.meet();
}

Spent Part::run(const std::string& what, int blocks, const std::function<cudaError_t()>& launch) {
  const Spent before = Spent::now();
  check(launch(), what);
  player.finish(blocks, what);
  bench.meet();
  return Spent::now() - before;
}

std::uint64_t Part::verify(std::size_t bytes, bool stamped, std::uint64_t stamp) {
  const Side& side = player.side();
  const cudaStream_t stream = player.stream();
  unsigned long long wrong = 0;
  check(cudaMemsetAsync(player.wrong(), 0, sizeof wrong, stream), "verification");
  const VerifyArgs args{.data = side.receive,
                        .words = bytes / 8,
                        .seed = tools::pattern_seed(side.half ^ 1, bytes),
                        .stamped = stamped,
                        .stamp = stamp,
                        .wrong = player.wrong()};
  check(launch_verify(args, stream), "verification");
  check(cudaMemcpyAsync(&wrong, player.wrong(), sizeof wrong, cudaMemcpyDeviceToHost, stream),
        "verification");
  check(cudaStreamSynchronize(stream), "verification");
  return wrong;
}

std::uint64_t Part::await(const std::string& what, const AwaitArgs& args) {
  player.clear_outcomes();
  check(launch_await(args, player.stream()), what);
  player.finish(1, what + ", after the last operation");
  return player.outcomes()[0].wrong;
}

void Part::hand_in(std::uint64_t wrong, std::vector<double> mine,
                   const std::function<void(std::uint64_t wrong, std::vector<double>& all)>& make) {
  const auto me = static_cast<std::size_t>(index);
  bench.words[me] = wrong;
  bench.samples[me] = std::move(mine);
  bench.meet();
  if (index == 0) {
    std::vector<double> all;
    for (const std::vector<double>& s : bench.samples) all.insert(all.end(), s.begin(), s.end());
    make(std::accumulate(bench.words.begin(), bench.words.end(), std::uint64_t{0}), all);
  }
  bench.meet();
}

}  // namespace twinpath::gda_perf
