#pragma once
// A whole life of the built plugin (net and GIN) in a process of its own, which from some point of
// it on may do less.  The parent looks at it from outside, for it may be unable to look at itself.
//
// Threads: the test's.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <span>
#include <stdexcept>
#include <thread>

#include "test/abi/built_plugin.h"
#include "test/abi/gin_team.h"
#include "test/support/descriptors.h"

namespace twinpath::test {
enum class Stage : std::uint8_t { init, connect, memory, traffic, gin, close, over };
inline constexpr std::array kStages{Stage::init,    Stage::connect, Stage::memory,
                                    Stage::traffic, Stage::gin,     Stage::close};

// Written by the child, without allocation, and read by its parent.
struct Report {
  static constexpr int kLines = 8;
  std::atomic<Stage> stage{Stage::init};
  std::atomic<bool> over{false}, failed{false}, in_the_test{false};
  std::atomic<int> warnings{0};
  std::array<std::array<char, 700>, kLines> lines{};
  bool says(const char* word) const {
    for (const auto& line : lines)
      if (std::string_view(line.data()).find(word) != std::string_view::npos) return true;
    return false;
  }
};
inline Report* report;

__attribute__((format(printf, 5, 6))) inline void note(LogLevel level, unsigned long, const char*,
                                                       int, const char* format, ...) {
  if (level != LogLevel::warn) return;
  const int n = report->warnings.fetch_add(1);
  if (n >= Report::kLines) return;
  va_list arguments;
  va_start(arguments, format);
  auto& line = report->lines[static_cast<std::size_t>(n)];
  (void)std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
}

struct Refusal {};
inline void need(abi::ncclResult_t result) {
  if (result != abi::ncclSuccess) throw Refusal();
}

// Both ends of a connection, given back however far it got.
struct Ends {
  explicit Ends(AnyNet& n) : net(n) {}
  ~Ends() {
    if (send != nullptr) (void)net.close_send(send);
    if (recv != nullptr) (void)net.close_recv(recv);
    if (listener != nullptr) (void)net.close_listen(listener);
  }
  void connect(void* ctx) {
    Handle handle{};
    need(net.listen(ctx, 0, handle.data(), &listener));
    while (send == nullptr || recv == nullptr) {
      if (send == nullptr) need(net.connect(ctx, 0, handle.data(), &send, -1));
      if (recv == nullptr) need(net.accept(listener, &recv));
    }
  }
  void move(std::span<std::uint8_t> from, std::span<std::uint8_t> to, void* out, void* in) {
    void *data = to.data(), *sent = nullptr, *received = nullptr;
    std::size_t bytes = to.size();
    int tag = 3;
    while (received == nullptr) need(net.irecv(recv, 1, &data, &bytes, &tag, &in, &received));
    while (sent == nullptr) need(net.isend(send, from.data(), from.size(), tag, out, &sent));
    for (void** request : {&sent, &received})
      for (int done = 0; done == 0;) need(net.test(*request, &done, nullptr));
  }
  AnyNet& net;
  void *send = nullptr, *recv = nullptr, *listener = nullptr;
};

struct Instance {
  explicit Instance(AnyNet& n) : net(n) { need(net.init(&ctx, note, -1)); }
  ~Instance() { (void)net.finalize(ctx); }
  AnyNet& net;
  void* ctx = nullptr;
};

using Reach = std::function<void(Stage)>;

inline void live(AnyNet& net, AnyGin& gin, const Reach& reach) {
  static std::array<std::uint8_t, 300'000> from, to;  // before memory is short
  from.fill(0x5a);
  reach(Stage::init);
  const Instance instance(net);
  int devices = 0;
  need(net.devices(&devices));
  if (devices == 0) throw Refusal();
  reach(Stage::connect);
  Ends ends(net);
  ends.connect(instance.ctx);
  reach(Stage::memory);
  void *out = nullptr, *in = nullptr;
  need(net.reg(ends.send, from.data(), from.size(), abi::kPtrHost, &out));
  need(net.reg(ends.recv, to.data(), to.size(), abi::kPtrHost, &in));
  reach(Stage::traffic);
  ends.move(from, to, out, in);
  if (to != from) throw std::logic_error("other bytes");
  {
    reach(Stage::gin);
    Bootstrap alone(1);
    const GinRank rank(gin, note, alone, 0, 1, true, {});
  }
  reach(Stage::close);
  need(net.dereg(ends.send, out));
  need(net.dereg(ends.recv, in));
}

[[noreturn]] inline void child(Stage at, const std::function<bool()>& squeeze) {
  ::alarm(180);  // a hang is a death
  (void)::setenv("TWINPATH_SOFT_JOB", ("limits-" + std::to_string(::getpid())).c_str(), 1);
  const BuiltPlugin plugin;
  const auto* table = static_cast<const abi::ncclGin_v11_t*>(plugin.find("ncclGinPlugin_v11"));
  GinAdapter<abi::ncclGin_v11_t> gin(table);
  try {
    live(*plugin.nets.back(), gin, [&](Stage stage) {
      report->stage = stage;
      if (stage == at && !squeeze()) throw std::logic_error("no limit was set");
    });
    report->stage = Stage::over;
  } catch (const Refusal&) {
    report->failed = true;
  } catch (const Failure&) {  // of GIN's helpers
    report->failed = true;
  } catch (...) {
    report->in_the_test = true;
  }
  report->over = true;
  for (;;) ::pause();
}

struct Row {
  std::string name;
  Stage at;
  std::function<bool()> squeeze;
  const char* remedy;  // that is told where it fails
  bool fails = false;  // if false, it may
};

class Life {
 public:
  explicit Life(const Row& row) : row_(row) {
    void* p =
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    report = report_ = new (p) Report;
    pid_ = ::fork();
    if (pid_ == 0) child(row.at, row.squeeze);
  }
  ~Life() {
    if (pid_ > 0) (void)::kill(pid_, SIGKILL);
    if (pid_ > 0) (void)::waitpid(pid_, nullptr, 0);
    (void)::munmap(report_, sizeof(Report));
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // Waits for its end, of either kind.
  const Report& lived() {
    int status = 0;
    while (!report_->over && ::waitpid(pid_, &status, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (report_->over) return *report_;
    pid_ = 0;
    INFO(row_.name << ": status " << status << " in stage "
                   << static_cast<int>(report_->stage.load()));
    FAIL("died, or hung for 180 s");
    return *report_;
  }
  // Detached threads may still be on their way out.
  bool keeps_at_most(std::size_t most_descriptors, std::size_t most_threads) const {
    for (int i = 0; i < 30'000; ++i) {
      if (descriptors() <= most_descriptors && threads() <= most_threads) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::size_t descriptors() const { return entries_of(folder() + "/fd"); }
  std::size_t threads() const { return entries_of(folder() + "/task"); }

 private:
  std::string folder() const { return "/proc/" + std::to_string(pid_); }
  const Row& row_;
  pid_t pid_ = 0;
  Report* report_ = nullptr;
};

}  // namespace twinpath::test
