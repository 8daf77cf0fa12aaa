#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <set>

#include "test/soft/strangers.h"
#include "test/support/child_process.h"

namespace twinpath::test {
namespace {

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
  explicit Name(const std::string& text) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int listen_at(const std::string& text, int backlog) {
  const Name name(text);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, name.get(), name.length) == 0 && listen(fd, backlog) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

bool become_nobody() {
  return setresgid(kNobody, kNobody, kNobody) == 0 && setresuid(kNobody, kNobody, kNobody) == 0;
}

// Descriptors in the next message of `fd`, cut short; -1: none comes.
int cut_descriptors(int fd) {
  char bytes[4096];
  iovec iov{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))];
  msghdr h{};
  h.msg_iov = &iov;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = sizeof control;
  if (recvmsg(fd, &h, MSG_DONTWAIT) <= 0) return -1;
  int got = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr; c = CMSG_NXTHDR(&h, c)) {
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int each = -1;
      std::memcpy(&each, CMSG_DATA(c) + i * sizeof each, sizeof each);
      (void)!ftruncate(each, 0);
      ++got;
    }
  }
  return got;
}

int squat(const std::string& name, int parent) {
  if (!become_nobody()) return 2;
  const int listening = listen_at(name, 64);
  if (listening < 0) return 3;
  if (!tell(parent, char{1})) return 4;
  std::vector<int> callers;
  int got = 0;
  for (bool asked = false;;) {
    pollfd fds[2] = {{parent, POLLIN, 0}, {listening, POLLIN, 0}};
    if (!asked) {
      (void)poll(fds, 2, 20);
      asked = (fds[0].revents & POLLIN) != 0;
    }
    pollfd waiting{listening, POLLIN, 0};
    while (poll(&waiting, 1, 0) == 1) callers.push_back(accept(listening, nullptr, nullptr));
    for (const int c : callers) {
      for (int n = 0; (n = cut_descriptors(c)) >= 0;) got += n;
    }
    if (asked) break;
  }
  char go = 0;
  if (!hear(parent, go) || !tell(parent, got)) return 5;
  return hear(parent, go) ? 0 : 6;
}

int crowd(const std::string& job, int parent) {
  const rlimit many{4096, 4096};
  if (setrlimit(RLIMIT_NOFILE, &many) != 0) return 2;
  if (!become_nobody()) return 3;
  int taken = 0;
  for (int slot = 0; slot < 1024; ++slot) {
    const std::string name = "twinpath-0-" + job + "-" + std::to_string(slot);
    // The name that is all of it, and one that looks like that of a process; nobody accepts there.
    if (listen_at(name, 0) >= 0) ++taken;
    char digits[33];
    std::snprintf(digits, sizeof digits, "%032x", static_cast<unsigned>(slot));
    if (listen_at(name + "-" + digits, 0) >= 0) ++taken;
  }
  char go = 0;
  return tell(parent, taken) && hear(parent, go) ? 0 : 4;
}

}  // namespace

bool is_stranger(const std::string& role) {
  return role.starts_with("squat ") || role.starts_with("crowd ");
}

int stranger_main(const std::string& role, int parent) {
  const std::string what = role.substr(6);
  return role.starts_with("squat") ? squat(what, parent) : crowd(what, parent);
}

std::vector<std::string> listens_at(pid_t pid) {
  std::set<unsigned long> sockets;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* fds = opendir(folder.c_str());
  if (fds == nullptr) return {};
  while (const dirent* d = readdir(fds)) {
    char link[64] = "";
    unsigned long inode = 0;
    if (readlink((folder + "/" + d->d_name).c_str(), link, sizeof link - 1) > 0 &&
        std::sscanf(link, "socket:[%lu]", &inode) == 1)
      sockets.insert(inode);
  }
  closedir(fds);
  std::vector<std::string> names;
  FILE* list = std::fopen("/proc/net/unix", "re");
  if (list == nullptr) return {};
  char line[512];
  while (std::fgets(line, sizeof line, list) != nullptr) {
    unsigned long flags = 0, inode = 0;
    char path[256] = "";
    if (std::sscanf(line, "%*s %*s %*s %lx %*s %*s %lu @%255s", &flags, &inode, path) == 3 &&
        (flags & 0x10000) != 0 && sockets.contains(inode))
      names.emplace_back(path);
  }
  std::fclose(list);
  return names;
}

int connect_to(const std::string& text) {
  const Name name(text);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, name.get(), name.length) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace twinpath::test
