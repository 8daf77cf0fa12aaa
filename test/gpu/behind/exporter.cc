#include "test/gpu/behind/exporter.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "test/gpu/behind/gpu.h"

namespace twinpath::behind {
namespace {

constexpr std::size_t kSharedBytes = std::size_t{4} << 20;
constexpr int kPatienceMs = 30000;

void make_pipe(UniqueFd& read_end, UniqueFd& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw tools::Failure("no pipe for the exporter");
  read_end = UniqueFd(ends[0]);
  write_end = UniqueFd(ends[1]);
}

bool read_all(int fd, void* to, std::size_t bytes) {
  std::size_t have = 0;
  while (have < bytes) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, kPatienceMs) <= 0) return false;
    const ssize_t n = read(fd, static_cast<char*>(to) + have, bytes - have);
    if (n <= 0) return false;
    have += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Exporter::Exporter(int device) {
  UniqueFd its_stdin, answer, its_stdout;
  make_pipe(its_stdin, leash_);
  make_pipe(answer, its_stdout);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, its_stdin.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, its_stdout.get(), 1);
  std::string number = std::to_string(device);
  char name[] = "behind", option[] = "--exporter";
  char* arguments[] = {name, option, number.data(), nullptr};
  const int error = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    throw tools::Failure("the process that shares memory does not start");
  }
  its_stdout.reset();
  if (!read_all(answer.get(), &handle_, sizeof handle_)) {
    // The destructor does not run for what was not made.
    leash_.reset();
    (void)kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
    throw tools::Failure("the process that shares memory of GPU " + number + " sent no handle");
  }
}

Exporter::~Exporter() {
  leash_.reset();
  if (pid_ > 0) (void)waitpid(pid_, nullptr, 0);
}

int play_exporter(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  const DeviceMemory memory(kSharedBytes);
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, memory.data()), "cudaIpcGetMemHandle");
  if (write(STDOUT_FILENO, &handle, sizeof handle) != sizeof handle) return 1;
  char unused;
  while (read(STDIN_FILENO, &unused, 1) > 0) {
  }
  return 0;
}

}  // namespace twinpath::behind
