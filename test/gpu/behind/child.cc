#include "test/gpu/behind/child.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "test/gpu/behind/rank.h"

namespace twinpath::behind {
namespace {

using Json = nlohmann::json;

class Job {
 public:
  explicit Job(const Options& options)
      : options_(options), cases_(options.cases()), begun_(now_ns()) {
    (void)fcntl(options.report_fd, F_SETFD, FD_CLOEXEC);
    if (!options.plugin.empty()) setenv("NCCL_NET_PLUGIN", options.plugin.c_str(), 1);
    // Read by the driver when it starts; the default from CUDA 12.2 on.
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
  }

  int run() {
    watch();
    try {
      set_up();
    } catch (const std::exception& error) {
      fail(first_rank(), "", error.what());
    }
    if (layout() == Layout::threads) {
      meeting_.emplace(static_cast<std::ptrdiff_t>(ranks_.size()));
      std::vector<std::thread> threads;
      for (auto& rank : ranks_) {
        threads.emplace_back([this, &rank] { play({rank.get()}); });
      }
      for (std::thread& thread : threads) thread.join();
    } else {
      std::vector<Rank*> all;
      for (auto& rank : ranks_) all.push_back(rank.get());
      play(all);
    }
    return kExitOk;
  }

 private:
  Layout layout() const { return options_.layouts.front(); }
  int first_rank() const { return std::max(0, options_.rank); }

  // One write a line: lines of several processes do not mix.
  void say(const Json& line) const {
    const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const ssize_t unused = write(options_.report_fd, text.data(), text.size());
    (void)unused;
  }

  [[noreturn]] void fail(int rank, const std::string& which, const std::string& text) const {
    say({{"what", "error"}, {"rank", rank}, {"case", which}, {"text", text}});
    _exit(kExitBad);
  }

  // Few and short enough that a line goes into a pipe in one piece; the longest is among them.
  static std::vector<double> sample(std::vector<double> us) {
    std::sort(us.begin(), us.end());
    const std::size_t stride = us.size() / 100 + 1;
    std::vector<double> out;
    for (std::size_t back = 0; back < us.size(); back += stride) {
      out.push_back(std::round(us[us.size() - 1 - back] * 10) / 10);
    }
    return out;
  }

  std::string case_text(int index) const {
    return index < 0 || index >= static_cast<int>(cases_.size())
               ? ""
               : cases_[static_cast<std::size_t>(index)].text();
  }

  void watch() {
    // Detached: it ends with the process, which lives as long as the job.
    std::thread([this] {
      for (;;) {
        usleep(20000);
        if (overdue(now_ns())) give_up();
      }
    }).detach();
  }

  bool overdue(std::int64_t now) const {
    const auto ns = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e9); };
    if (!ready_.load()) return now - begun_ > ns(options_.setup_limit_s);
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      const Progress& at = rank->progress();
      return at.index.load() >= 0 && now - at.since_ns.load() > ns(options_.limit_s);
    });
  }

  [[noreturn]] void give_up() const {
    if (!ready_.load()) {
      say({{"what", "stuck"},
           {"rank", first_rank()},
           {"case", ""},
           {"round", 0},
           {"step", setting_up_.load()}});
    } else {
      for (const auto& rank : ranks_) {
        const Progress& at = rank->progress();
        const int index = at.index.load();
        if (index < 0) continue;
        say({{"what", "stuck"},
             {"rank", rank->rank()},
             {"case", case_text(index)},
             {"round", at.round.load()},
             {"step", at.step.load()}});
      }
    }
    _exit(kExitBad);
  }

  coll::NcclUniqueId shared_id() {
    coll::NcclUniqueId id{};
    if (options_.rank <= 0) nccl_.check(nccl_.GetUniqueId(&id), nullptr, "ncclGetUniqueId");
    if (options_.rank < 0) return id;
    const std::string& file = options_.id_file;
    if (options_.rank == 0) {
      // Under another name first: nobody reads half of it.
      const std::string draft = file + ".new";
      std::FILE* out = std::fopen(draft.c_str(), "wb");
      const bool ok = out != nullptr && std::fwrite(&id, sizeof id, 1, out) == 1;
      if (out == nullptr || std::fclose(out) != 0 || !ok ||
          std::rename(draft.c_str(), file.c_str()) != 0) {
        throw tools::Failure("--id-file " + file + " cannot be written");
      }
      return id;
    }
    setting_up_ = "waiting for rank 0's --id-file";
    for (;;) {  // the watch ends it
      if (std::FILE* in = std::fopen(file.c_str(), "rb"); in != nullptr) {
        const bool ok = std::fread(&id, sizeof id, 1, in) == 1;
        (void)std::fclose(in);
        if (ok) return id;
      }
      usleep(10000);
    }
  }

  void set_up() {
    setting_up_ = "opening NCCL";
    nccl_ = coll::NcclApi::open(options_.nccl);
    setting_up_ = "starting CUDA";
    int gpus = 0;
    check(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    const bool alone = options_.rank < 0;
    const int size = !alone ? options_.ranks : options_.gpus != 0 ? options_.gpus : gpus;
    if (gpus == 0 || (alone && size > gpus)) {
      throw tools::Failure("this host shows " + std::to_string(gpus) + " GPUs, not " +
                           std::to_string(size));
    }
    std::size_t largest = sizeof(float);
    for (const Case& c : cases_) largest = std::max(largest, c.bytes);
    for (int r = alone ? 0 : options_.rank; r < (alone ? size : options_.rank + 1); ++r) {
      ranks_.push_back(std::make_unique<Rank>(nccl_, r % gpus, r, size, largest, options_.stream));
    }
    const coll::NcclUniqueId id = shared_id();
    setting_up_ = "ncclCommInitRank";
    nccl_.check(nccl_.GroupStart(), nullptr, "ncclGroupStart");
    for (auto& rank : ranks_) {
      rank->use();
      nccl_.check(nccl_.CommInitRank(rank->comm(), size, id, rank->rank()), nullptr,
                  "ncclCommInitRank");
    }
    nccl_.check(nccl_.GroupEnd(), nullptr, "ncclCommInitRank");
    if (options_.work == Work::gin) make_gin();
    // All sizes once, as NCCL makes connections when they are first needed.
    setting_up_ = "the first all-reduces";
    std::vector<Rank*> all;
    for (auto& rank : ranks_) {
      rank->use();
      rank->warm_up();
      all.push_back(rank.get());
    }
    static constexpr Call kNothing{"nothing", "", [](const Place&) { return Action{[](int) {}}; }};
    for (const Case& c : cases_) {
      for (Rank* rank : all) begin(*rank, -1, kNothing, c.bytes);
      round(all, 0);
      for (Rank* rank : all) {
        const Outcome outcome = rank->end();
        if (outcome.wrong != 0) {
          throw tools::Failure("the first all-reduce of " + std::to_string(c.bytes) +
                               " bytes is wrong in " + std::to_string(outcome.wrong) +
                               " elements, with nothing behind it");
        }
      }
    }
    ready_ = true;
    for (Rank* rank : all) say({{"what", "ready"}, {"rank", rank->rank()}});
  }

  void make_gin() {
    setting_up_ = "making windows and device communicators for GIN";
    gin_nccl_ = gda_perf::NcclApi::open(options_.nccl);
    std::vector<std::string> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([this, i, &errors] {
        try {
          ranks_[i]->use_gin(gin_nccl_);
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) {
      if (!error.empty()) throw tools::Failure(error);
    }
  }

  void begin(Rank& rank, int index, const Call& call, std::size_t bytes) const {
    rank.use();
    rank.begin(index, call, bytes, options_.rank < 0);
  }

  // Where the GPUs of a process reach one another's memory, the driver lets what frees or looks at
  // some wait for the kernels of all.  A rank that had begun the next round meanwhile would wait
  // for the one that frees, for ever and with any transport: not what is asked here.
  void meet() const {
    if (meeting_) meeting_->arrive_and_wait();
  }

  // One round of the ranks that this thread drives.
  void round(const std::vector<Rank*>& mine, int number) const {
    for (Rank* rank : mine) {
      rank->use();
      rank->start(number);
    }
    for (int i = 0; i < options_.ahead; ++i) {
      if (mine.size() > 1) nccl_.check(nccl_.GroupStart(), nullptr, "ncclGroupStart");
      for (Rank* rank : mine) {
        rank->use();
        rank->reduce();
      }
      if (mine.size() > 1) nccl_.check(nccl_.GroupEnd(), nullptr, "ncclGroupEnd");
    }
    for (Rank* rank : mine) {
      rank->use();
      rank->call();
    }
    for (Rank* rank : mine) {
      rank->use();
      rank->finish();
    }
    meet();
  }

  void play(const std::vector<Rank*>& mine) {
    int index = 0;
    try {
      for (; index < static_cast<int>(cases_.size()); ++index) play_case(mine, index);
    } catch (const std::exception& error) {
      fail(mine.front()->rank(), case_text(index), error.what());
    }
    for (Rank* rank : mine) say({{"what", "done"}, {"rank", rank->rank()}});
  }

  void play_case(const std::vector<Rank*>& mine, int index) const {
    const Case& c = cases_[static_cast<std::size_t>(index)];
    for (Rank* rank : mine) begin(*rank, index, *find_call(c.call), c.bytes);
    const bool skipped =
        std::any_of(mine.begin(), mine.end(), [](const Rank* rank) { return rank->skipped(); });
    for (int r = 0; r < options_.rounds && !skipped; ++r) round(mine, r);
    for (Rank* rank : mine) {
      rank->use();
      const Outcome outcome = rank->end();
      Json line = {{"what", "end"},
                   {"rank", rank->rank()},
                   {"case", c.text()},
                   {"wrong", outcome.wrong},
                   {"call_us", sample(outcome.call_us)}};
      if (!outcome.skipped.empty()) line["skipped"] = outcome.skipped;
      say(line);
    }
    meet();
  }

  const Options& options_;
  const std::vector<Case> cases_;
  const std::int64_t begun_;
  std::atomic<bool> ready_{false};
  std::atomic<const char*> setting_up_{"start"};
  coll::NcclApi nccl_{};
  gda_perf::NcclApi gin_nccl_{};
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable std::optional<std::barrier<>> meeting_;  // of the threads, one a rank
};

}  // namespace

int run_ranks(const Options& options) {
  Job job(options);
  const int code = job.run();
  // Communicators are not destroyed: `behind` is about calls, and coll_perf watches that.
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace twinpath::behind
