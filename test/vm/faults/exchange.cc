#include "test/vm/faults/exchange.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "test/vm/faults/network.h"
#include "test/vm/faults/remote_end.h"

namespace twinpath::test {

Exchange::Exchange(const EndPlan& sender, const EndPlan& receiver, std::vector<std::size_t> sizes)
    : plans_{sender, receiver}, sizes_(std::move(sizes)) {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(2);
  }
  shared_ = new (memory) Shared;
  (void)std::fflush(nullptr);  // or both children write it again
  for (Side s : {Side::sender, Side::receiver}) {
    const auto at = static_cast<std::size_t>(s);
    pids_[at] = ::fork();
    if (pids_[at] == 0 && plans_[at].remote) run_remote_end(*shared_, s, plans_[at], sizes_);
    if (pids_[at] == 0) run_end(*shared_, s, plans_[at], sizes_);
    if (pids_[at] < 0) std::perror("fork");
  }
}

Exchange::~Exchange() {
  leave();
  (void)::munmap(shared_, sizeof(Shared));
}

void Exchange::leave() {
  shared_->quit.store(true);
  for (const std::int64_t end = now_ns() + 2 * kSecond;;) {
    bool any = false;
    for (pid_t& pid : pids_) {
      if (pid > 0 && ::waitpid(pid, nullptr, WNOHANG) == pid) pid = -1;
      any = any || pid > 0;
    }
    if (!any) return;
    if (now_ns() > end) break;
    rest_ms(1);
  }
  for (pid_t& pid : pids_) {
    if (pid <= 0) continue;
    (void)::kill(pid, SIGKILL);
    (void)::waitpid(pid, nullptr, 0);
    pid = -1;
  }
}

void Exchange::signal(Side s, int number) {
  const pid_t p = pids_[static_cast<std::size_t>(s)];
  if (p > 0) (void)::kill(p, number);
}

bool Exchange::wait(int limit_ms, const std::function<bool()>& done, bool stop_when_ended) {
  const std::int64_t end = now_ns() + limit_ms * kMillisecond;
  for (;;) {
    if (done()) return true;
    const bool ended =
        phase(Side::sender) == Phase::failed || phase(Side::receiver) == Phase::failed;
    if (now_ns() > end || (ended && stop_when_ended)) return done();
    rest_ms(1);
  }
}

bool Exchange::wait_connected(int limit_ms) {
  return wait(
      limit_ms,
      [&] {
        return phase(Side::sender) == Phase::connected && phase(Side::receiver) == Phase::connected;
      },
      true);
}

bool Exchange::wait_messages(std::uint64_t count, int limit_ms) {
  return wait(
      limit_ms, [&] { return messages() >= count; }, true);
}

bool Exchange::wait_ended(Side s, int limit_ms) {
  return wait(
      limit_ms, [&] { return phase(s) == Phase::failed || phase(s) == Phase::done; }, false);
}

bool Exchange::reconnect(int limit_ms) {
  shared_->handle_ready.store(false);
  shared_->finish.store(false);
  const int round = shared_->round.fetch_add(1) + 1;
  const auto let_go = [&] {
    return end(Side::sender).round.load() == round && end(Side::receiver).round.load() == round;
  };
  return wait(limit_ms, let_go, false) && wait_connected(limit_ms);
}

bool Exchange::finish(int limit_ms) {
  shared_->finish.store(true);
  return wait(
      limit_ms,
      [&] { return phase(Side::sender) == Phase::done && phase(Side::receiver) == Phase::done; },
      true);
}

std::string Exchange::warnings(Side s) {
  std::string out;
  for (int i = 0; i < end(s).warnings.load(); ++i) {
    if (!out.empty()) out += '\n';
    out += end(s).warning[static_cast<std::size_t>(i)].text.data();
  }
  return out;
}

std::string Exchange::reason(Side s) {
  std::string last;
  for (int i = 0; i < end(s).warnings.load(); ++i) {
    last = end(s).warning[static_cast<std::size_t>(i)].text.data();
    if (last.find("connection ") != std::string::npos) break;
  }
  return last;
}

std::string Exchange::describe(Side s) {
  EndState& e = end(s);
  std::string text = side_name(s);
  switch (e.phase.load()) {
    case Phase::starting:
      text += " never connected";
      break;
    case Phase::connected:
      text += " still runs";
      break;
    case Phase::done:
      text += " is done";
      break;
    case Phase::failed:
      text += std::string(" failed in ") + e.call.data() + " with " + status_name(e.status.load());
      break;
  }
  text += " after " + std::to_string(e.messages.load()) + " messages";
  if (e.wrong[0] != 0) text += std::string(", wrong data: ") + e.wrong.data();
  if (const std::uint32_t twice = e.posted_twice.load(); twice != 0) {
    std::array<char, 40> said;
    (void)std::snprintf(said.data(), said.size(), ", %s 0x%x", kPostedTwice, twice);
    text += said.data();
  }
  const std::string why = reason(s);
  return why.empty() ? text : text + " (" + why + ")";
}

}  // namespace twinpath::test
