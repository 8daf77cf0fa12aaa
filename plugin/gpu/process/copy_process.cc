#include "plugin/gpu/process/copy_process.h"

#include <dlfcn.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/base/wait_within.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gpu::process {
namespace {

// Our environment but for what is meant for the program alone: libraries that are loaded into it
// (profilers too), and which GPUs it shows itself (they are found by their UUID; the parts of a GPU
// are not, MIG).
std::vector<char*> environment() {
  std::vector<char*> out;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry = *e;
    if (entry.starts_with("LD_PRELOAD=") || entry.starts_with("LD_AUDIT=") ||
        entry.starts_with("CUDA_INJECTION64_PATH="))
      continue;
    if (entry.starts_with("CUDA_VISIBLE_DEVICES=") && entry.find("MIG") == std::string_view::npos)
      continue;
    out.push_back(*e);
  }
  out.push_back(nullptr);
  return out;
}

struct Spawn {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  Spawn() {
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
  }
  ~Spawn() {
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attributes);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
};

// 0, or an errno.  What runs then puts itself aside and ends, so there is no child to wait for.
int launch(const std::string& executable, const std::string& driver, HelperCpus cpus, int socket) {
  Spawn spawn;
  (void)posix_spawn_file_actions_adddup2(&spawn.actions, socket, kSocket);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  (void)posix_spawnattr_setsigmask(&spawn.attributes, &none);
  (void)posix_spawnattr_setsigdefault(&spawn.attributes, &all);
  (void)posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = executable, option = "--driver", library = driver, stay = kStayOption;
  char* argv[] = {name.data(), option.data(), library.data(),
                  cpus == HelperCpus::inherit ? stay.data() : nullptr, nullptr};
  std::vector<char*> env = environment();
  pid_t pid = -1;
  const int rc =
      posix_spawn(&pid, executable.c_str(), &spawn.actions, &spawn.attributes, argv, env.data());
  if (rc != 0) return rc;
  // Reaped by the program itself, perhaps.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return 0;
}

std::string driver_path(const cuda::Driver& d) {
  Dl_info info{};
  void* function = nullptr;
  std::memcpy(&function, &d.device_count, sizeof function);
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                     : "libcuda.so.1";
}

// Of the file itself the error's own words say enough.
std::string why_not_started(int error) {
  if (error == ENOMEM) return why_no_memory(error);
  const bool of_process = error == EAGAIN || error == EPERM || error == ENOSYS;
  return of_process ? why_no_thread(error) : std::strerror(error);
}

}  // namespace

UnsharedFd make_sockets(UniqueFd& theirs) {
  return UnsharedFd::make([&] {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    theirs = UniqueFd(ends[1]);
    return ends[0];
  });
}

Result<std::unique_ptr<CopyProcess>> CopyProcess::start(const std::string& executable,
                                                        HelperCpus cpus, std::string& why) {
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr) {
    why = cuda_notes();
    return Status::unsupported;
  }
  UniqueFd theirs;
  UnsharedFd ours = make_sockets(theirs);
  if (!ours) {
    why = "no socket for it: " + why_no_memory(errno);
    return Status::system;
  }
  // Nobody else's descriptor may have that number while the child is made.
  if (const int rc = launch(executable, driver_path(*d), cpus, theirs.get()); rc != 0) {
    why = executable + " cannot be started: " + why_not_started(rc);
    return Status::system;
  }
  theirs.reset();
  return meet(std::move(ours), why);
}

Result<std::unique_ptr<CopyProcess>> CopyProcess::meet(UnsharedFd socket, std::string& why,
                                                       std::int64_t limit_ns) {
  const timeval limit{static_cast<time_t>(limit_ns / kSecond), 0};
  for (const int side : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)::setsockopt(socket.get(), SOL_SOCKET, side, &limit, sizeof limit);
  std::unique_ptr<CopyProcess> made(new CopyProcess(std::move(socket)));
  pollfd p{made->socket_.get(), POLLIN, 0};
  RunLimit answer(limit_ns);
  while (p.revents == 0 && !answer.over(now_ns()))
    if (::poll(&p, 1, 100) < 0 && errno != EINTR) break;
  Answer ready;
  if (p.revents == 0 || made->next(ready, false) != Status::ok || ready.what != Tell::ready) {
    why = p.revents == 0 ? "it does not answer"
                         : "it ended before it was ready, or is of another "
                           "version than the plugin";
    return Status::system;
  }
  if (ready.status != Status::ok) {
    ready.text[sizeof ready.text - 1] = '\0';
    why = ready.text;
    return ready.status;
  }
  made->pid_ = ready.number;
  return made;
}

// Lock held, or nobody else knows it yet.  Log lines do not count.
Status CopyProcess::next(Answer& answer, bool wait) {
  for (;;) {
    const Status s = receive_message(socket_.get(), &answer, sizeof answer, nullptr, wait);
    if (s != Status::ok) return s;
    if (answer.layout != kLayout) return Status::closed;
    if (answer.what != Tell::log) return Status::ok;
    answer.text[sizeof answer.text - 1] = '\0';
    if (answer.number == static_cast<int>(LogLevel::warn)) {
      TP_WARN("copy process: %s", answer.text);
    } else if (answer.number == static_cast<int>(LogLevel::info)) {
      TP_INFO(net, "copy process: %s", answer.text);
    }
  }
}

void CopyProcess::note_end() {
  if (ended_.exchange(true, std::memory_order_acq_rel)) return;
  TP_WARN(
      "the copy process (process %d), which moves GPU memory for the software HCA, has ended, or "
      "does not "
      "answer: transfers of GPU memory end in errors from now on; dmesg says whether it was killed "
      "for "
      "memory; TWINPATH_SOFT_CUDA=inprocess does without it",
      pid_);
}

Status CopyProcess::ask(const Question& question, int fd, Tell expected, Answer& answer) {
  const std::lock_guard lock(mutex_);
  if (seen_ended()) return Status::closed;
  Question q = question;
  q.layout = kLayout;
  if (send_message(socket_.get(), &q, sizeof q, fd) && next(answer, true) == Status::ok &&
      answer.what == expected)
    return answer.status;
  note_end();
  return Status::closed;
}

Result<int> CopyProcess::open_gpu(const GpuUuid& gpu, const SharedMemory& memory) {
  Question q;
  q.what = Ask::open_gpu;
  q.gpu = gpu;
  Answer a;
  TP_TRY(ask(q, memory.fd(), Tell::opened, a));
  return a.number;
}

Result<CopyProcess::There> CopyProcess::import(std::uint64_t id, const ExportedAllocation& e) {
  Question q;
  q.what = Ask::import;
  q.id = id;
  q.gpu = e.gpu;
  q.kind = e.kind;
  q.bytes = e.bytes;
  std::copy(std::begin(e.ipc_handle), std::end(e.ipc_handle), q.ipc);
  Answer a;
  TP_TRY(ask(q, e.fd.get(), Tell::imported, a));
  return There{a.address, a.number};
}

void CopyProcess::forget(std::uint64_t id) {
  Question q;
  q.layout = kLayout;
  q.what = Ask::forget;
  q.id = id;
  const std::lock_guard lock(mutex_);
  if (!seen_ended()) (void)send_message(socket_.get(), &q, sizeof q, -1);
}

bool CopyProcess::ended() {
  if (seen_ended()) return true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;  // who asks will see it
  Answer answer;
  const Status s = next(answer, false);
  if (s == Status::closed) note_end();
  return seen_ended();
}

}  // namespace twinpath::gpu::process
