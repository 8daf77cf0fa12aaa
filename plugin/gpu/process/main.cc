// The executable of the copy process; the plugin starts it with a socket in place of descriptor 3.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "plugin/base/cpus.h"
#include "plugin/base/log.h"
#include "plugin/base/version.h"
#include "plugin/gpu/driver.h"
#include "plugin/gpu/process/server.h"

namespace {

namespace process = twinpath::gpu::process;
using twinpath::HelperCpus;
using twinpath::LogLevel;
using twinpath::Status;

// A log sink has no argument that could carry it.
process::Server* g_server = nullptr;

void to_program(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[sizeof(process::Answer::text)];
  va_list list;
  va_start(list, format);
  (void)std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  // The program puts its own prefix before it.
  constexpr std::string_view kPrefix = "NET/Twinpath: ";
  const bool prefixed = std::strncmp(text, kPrefix.data(), kPrefix.size()) == 0;
  if (g_server != nullptr)
    g_server->log(static_cast<int>(level), text + (prefixed ? kPrefix.size() : 0));
}

bool is_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

int usage(int code) {
  (void)std::fprintf(
      code == 0 ? stdout : stderr,
      "twinpath-copier: moves GPU memory for a program that uses libnccl-net.so\n"
      "with software HCAs. The plugin starts it, and it ends with the program; there\n"
      "is no use in starting it by hand. TWINPATH_SOFT_CUDA=inprocess does without.\n");
  return code;
}

void close_all_above(int last) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, last + 1, ~0u, 0) == 0) return;
#endif
  // Before Linux 5.9.
  const long most = ::sysconf(_SC_OPEN_MAX);
  for (int fd = last + 1; fd < most; ++fd) (void)::close(fd);
}

// Nothing of the program's stays open here: not its files, not its connections, not its terminal.
bool leave_program() {
  close_all_above(process::kSocket);
  const int null = ::open("/dev/null", O_RDWR);
  if (null < 0) return false;
  for (int fd = 0; fd < process::kSocket; ++fd) (void)::dup2(null, fd);
  if (null > process::kSocket) (void)::close(null);
  (void)::setsid();
  // The program's children are its own business: what it waits for must not be us.
  const pid_t child = ::fork();
  if (child != 0) ::_exit(child < 0 ? 1 : 0);
  // It ends when the program does, whatever is sent to the job's processes before.
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2})
    (void)::signal(s, SIG_IGN);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) return usage(0);
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    (void)std::printf("twinpath-copier %s\n", twinpath::built_from());
    return 0;
  }
  const bool stays = argc == 4 && std::strcmp(argv[3], process::kStayOption) == 0;
  if (argc != (stays ? 4 : 3) || std::strcmp(argv[1], "--driver") != 0 ||
      !is_socket(process::kSocket))
    return usage(2);
  if (!leave_program()) return 1;
  // Before the driver starts threads of its own.
  const bool left = twinpath::leave_binding(stays ? HelperCpus::inherit : HelperCpus::near);
  process::Server server(twinpath::UniqueFd(process::kSocket), left);
  g_server = &server;
  (void)twinpath::set_log_sink(to_program);

  Status status = Status::ok;
  std::string why;
  // Found by its path, as the program may have been told where to look by other means than ours.
  void* library = ::dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  using Init = int (*)(unsigned);
  const auto init =
      library != nullptr ? reinterpret_cast<Init>(::dlsym(library, "cuInit")) : nullptr;
  if (init == nullptr) {
    status = Status::unsupported;
    why = "it cannot load the CUDA driver";
  } else if (const int r = init(0); r != 0 || twinpath::gpu::cuda::driver() == nullptr) {
    status = Status::system;
    why =
        r != 0 ? "cuInit failed with CUDA error " + std::to_string(r) : twinpath::gpu::cuda_notes();
  }
  server.run(status, why);
  // The driver's own clean-up at exit may wait; the kernel gives all back without it.
  ::_exit(0);
}
