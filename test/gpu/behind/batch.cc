#include "test/gpu/behind/batch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"

namespace twinpath::behind {
namespace {

using Json = nlohmann::json;

constexpr int kReportFd = 3;
// The ranks watch themselves, and tell more; this is for those that cannot.
double spare_s(double limit_s) { return std::min(10.0, 1 + limit_s); }
// How long the other ranks have to say where they are, once one is in trouble.
constexpr std::int64_t kGraceNs = kSecond / 2;
constexpr std::int64_t kKillNs = 10 * kSecond;

std::int64_t in_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

std::string how_ended(int status) {
  if (WIFSIGNALED(status)) return std::string("killed by ") + strsignal(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

pid_t start_child(const Options& options, const std::vector<std::string>& arguments,
                  int report_fd) {
  // Everything before the fork: between it and exec nothing may allocate.
  const std::string program = options.child.empty() ? "/proc/self/exe" : options.child;
  std::string name = "behind";
  std::vector<std::string> texts = arguments;
  std::vector<char*> argv{name.data()};
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw tools::Failure("no more processes can be started; see ulimit -u");
  if (pid > 0) return pid;
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  // NCCL's words go where ours do not.
  if (options.json) (void)dup2(STDERR_FILENO, STDOUT_FILENO);
  if (report_fd == kReportFd) {
    (void)fcntl(report_fd, F_SETFD, 0);
  } else if (dup2(report_fd, kReportFd) < 0) {
    _exit(127);
  }
  execv(program.c_str(), argv.data());
  _exit(127);
}

Batch::Batch(const Options& options, Layout layout, std::vector<Case> cases, int gpus)
    : options_(options), layout_(layout), cases_(std::move(cases)), gpus_(gpus) {}

Batch::~Batch() {
  end_children(true);
  if (id_folder_.empty()) return;
  (void)unlink((id_folder_ + "/id").c_str());
  (void)unlink((id_folder_ + "/id.new").c_str());
  (void)rmdir(id_folder_.c_str());
}

void Batch::start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw tools::Failure("no pipe: see ulimit -n");
  lines_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> arguments = child_arguments(options_, layout_, cases_);
  arguments.insert(arguments.end(), {"--report-fd", std::to_string(kReportFd)});
  if (layout_ != Layout::processes) {
    children_.push_back(start_child(options_, arguments, theirs.get()));
    return;
  }
  const char* tmp = std::getenv("TMPDIR");
  id_folder_ = std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/behind-XXXXXX";
  if (mkdtemp(id_folder_.data()) == nullptr) {
    const std::string folder = std::exchange(id_folder_, "");
    throw tools::Failure("no folder " + folder + " for NCCL's id; set TMPDIR");
  }
  for (int rank = 0; rank < gpus_; ++rank) {
    std::vector<std::string> mine = arguments;
    mine.insert(mine.end(), {"--rank", std::to_string(rank), "--nranks", std::to_string(gpus_),
                             "--id-file", id_folder_ + "/id"});
    children_.push_back(start_child(options_, mine, theirs.get()));
  }
}

bool Batch::read_some(int timeout_ms) {
  pollfd p{lines_.get(), POLLIN, 0};
  if (poll(&p, 1, timeout_ms) <= 0) return true;
  char buffer[65536];
  const ssize_t n = read(lines_.get(), buffer, sizeof buffer);
  if (n <= 0) return n < 0 && errno == EINTR;
  unread_.append(buffer, static_cast<std::size_t>(n));
  for (std::size_t end = 0; (end = unread_.find('\n')) != std::string::npos;) {
    const Json line = Json::parse(unread_.substr(0, end), nullptr, false);
    unread_.erase(0, end + 1);
    if (line.is_object()) take(line);
  }
  return true;
}

void Batch::take(const Json& line) {
  const std::string what = line.value("what", "");
  if (what == "ready") {
    if (++ready_ == gpus_) since_ns_ = now_ns();
    return;
  }
  if (what == "end") {
    ended_[line.value("case", "")].push_back(line);
    return;
  }
  if (what != "error" && what != "stuck") return;
  if (trouble_ns_ == 0) trouble_ns_ = now_ns();
  (what == "error" ? failed_ : stuck_) = true;
  troubles_.push_back(line);
}

void Batch::count_finished(Report& report) {
  while (done_ < cases_.size()) {
    const std::vector<Json>& lines = ended_[cases_[done_].text()];
    if (static_cast<int>(lines.size()) < gpus_) return;
    Result result;
    result.layout = layout_;
    result.which = cases_[done_];
    for (const Json& line : lines) {
      result.wrong += line.value("wrong", std::uint64_t{0});
      const auto us = line.value("call_us", std::vector<double>{});
      result.call_us.insert(result.call_us.end(), us.begin(), us.end());
      if (line.contains("skipped")) result.detail = line.value("skipped", "");
    }
    result.verdict = !result.detail.empty() ? Verdict::skipped
                     : result.wrong != 0    ? Verdict::wrong
                                            : Verdict::ok;
    const std::int64_t now = now_ns();
    result.seconds = static_cast<double>(now - since_ns_) / 1e9;
    since_ns_ = now;
    report.add(result);
    ++done_;
  }
}

void Batch::follow(Report& report) {
  since_ns_ = now_ns();
  for (;;) {
    const bool more = read_some(50);
    if (ready_ == gpus_) count_finished(report);
    if (!more || done_ == cases_.size()) return;
    const std::int64_t now = now_ns();
    if (trouble_ns_ != 0 && now - trouble_ns_ > kGraceNs) return;
    const double limit = ready_ == gpus_ ? options_.limit_s : options_.setup_limit_s;
    if (now - since_ns_ > in_ns(limit + spare_s(limit))) {
      stuck_ = true;
      return;
    }
  }
}

void Batch::end_children(bool at_once) {
  const std::int64_t begun = now_ns();
  while (!children_.empty()) {
    const std::int64_t waited = now_ns() - begun;
    for (std::size_t i = 0; i < children_.size();) {
      int status = 0;
      const pid_t pid = children_[i];
      // The group first: what the rank started must not outlive it.
      if (at_once || waited > kGraceNs) (void)kill(-pid, SIGKILL);
      if (waitpid(pid, &status, WNOHANG) == 0) {
        ++i;
        continue;
      }
      (void)kill(-pid, SIGKILL);
      if (!at_once && status != 0) {
        deaths_ +=
            (deaths_.empty() ? "" : "; ") + std::string("a process was ") + how_ended(status);
      }
      children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (waited > kKillNs) {
      // The driver does not let them go; they must not hold us up, too.
      deaths_ += (deaths_.empty() ? "" : "; ") + std::string("killed, but still there");
      children_.clear();
      return;
    }
    if (!children_.empty()) usleep(10000);
  }
}

std::string Batch::trouble() const {
  std::string out;
  const std::string present = done_ < cases_.size() ? cases_[done_].text() : "";
  for (const Json& line : troubles_) {
    out += (out.empty() ? "rank " : "; rank ") + std::to_string(line.value("rank", 0));
    // A rank may be a case ahead of another.
    const std::string which = line.value("case", "");
    if (!which.empty() && which != present) out += " in " + which;
    if (line.value("what", "") == "error") {
      out += ": " + line.value("text", "");
    } else {
      out += ", round " + std::to_string(line.value("round", 0)) + ": " + line.value("step", "");
    }
  }
  if (!deaths_.empty()) out += (out.empty() ? "" : "; ") + deaths_;
  if (!out.empty()) return out;
  return stuck_ ? "no word from the ranks" : "the ranks ended early";
}

void Batch::run(Report& report) {
  start();
  follow(report);
  const bool silent = stuck_ || trouble_ns_ != 0;
  end_children(silent);
  if (done_ == cases_.size()) return;
  if (ready_ < gpus_) {
    setup_trouble_ = (stuck_ && !failed_ ? "setting up hung: " : "setting up failed: ") + trouble();
    return;
  }
  Result result;
  result.layout = layout_;
  result.which = cases_[done_];
  result.verdict = stuck_ && !failed_ ? Verdict::hung : Verdict::failed;
  result.seconds = static_cast<double>(now_ns() - since_ns_) / 1e9;
  result.detail = trouble();
  report.add(result);
  ++done_;
}

}  // namespace twinpath::behind
