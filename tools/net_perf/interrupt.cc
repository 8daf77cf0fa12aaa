#include "tools/net_perf/interrupt.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

sigset_t both() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t set = both();
  fd_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw Failure(std::string("signalfd: ") + std::strerror(errno));
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

Interrupts::~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int Interrupts::take() {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

std::string interrupt_text(int signal) {
  return std::string("interrupted (") + (signal == SIGINT ? "SIGINT" : "SIGTERM") + ")";
}

void leave_interrupts_to_parent() {
  std::signal(SIGINT, SIG_IGN);
  const sigset_t set = both();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  const sigset_t set = both();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
  _exit(128 + signal);
}

}  // namespace twinpath::tools
