// --hosts: this program on each of them, by ssh.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "tools/common/circumstances.h"
#include "tools/common/failure.h"
#include "tools/topo/hosts.h"

namespace twinpath::tools::topo {
namespace {

// A process of ours; ended with its owner if it still runs.
class Child {
 public:
  Child(const std::vector<std::string>& words, std::string host) : host_(std::move(host)) {
    std::vector<char*> argv;
    for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    const int error = posix_spawnp(&pid_, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0)
      throw Failure(words.front() + ": cannot be started: " + std::strerror(error) +
                    "; give another one with --ssh");
  }
  Child(Child&& o) noexcept : pid_(std::exchange(o.pid_, -1)), host_(std::move(o.host_)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    (void)kill(pid_, SIGTERM);
    (void)wait(0);
  }
  // Its exit status, 128 and more after a signal; nullopt while it runs (`flags`: WNOHANG).
  std::optional<int> wait(int flags) {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, flags) != pid_) return std::nullopt;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& host() const { return host_; }

 private:
  pid_t pid_ = -1;
  std::string host_;
};

// A shell's line for one host: settings of here, and the options that hold there, too.
std::string remote_line(const Options& o, std::size_t rank, std::size_t size,
                        const std::string& rendezvous) {
  std::string line = "exec env";  // so that what ends the shell ends it
  for (const auto& [name, value] : relevant_environment()) line += " " + quoted(name + "=" + value);
  if (const char* path = std::getenv("LD_LIBRARY_PATH"))
    line += " " + quoted(std::string("LD_LIBRARY_PATH=") + path);
  std::error_code ignored;
  line += " " + quoted(std::filesystem::read_symlink("/proc/self/exe", ignored).string());
  line += " check --rank " + std::to_string(rank) + "/" + std::to_string(size) + " --rendezvous " +
          quoted(rendezvous) + " --patience " + std::to_string(o.patience_s);
  if (!o.archive.empty() && rank == 0) line += " --archive " + quoted(o.archive);
  if (o.anonymous) line += " --anonymous";
  if (o.json) line += " --json";
  if (o.strict) line += " --strict";
  if (!o.input.cuda) line += " --no-cuda";
  if (!o.input.hwloc) line += " --no-hwloc";
  return line;
}

}  // namespace

std::vector<std::string> split_hosts(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text + ",");
  for (std::string host; std::getline(in, host, ',');) {
    // What begins with a dash would be an option of ssh's.
    if (host.empty() || host.front() == '-')
      throw BadUsage("--hosts \"" + text + "\": names of hosts with commas between them");
    out.push_back(host);
  }
  if (out.size() < 2) throw BadUsage("--hosts \"" + text + "\": give two hosts or more");
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

int check_by_ssh(const Options& o) {
  const std::vector<std::string> hosts = split_hosts(o.hosts);
  const std::string first = hosts.front().substr(hosts.front().rfind('@') + 1);
  const std::string rendezvous =
      !o.rendezvous.empty() ? o.rendezvous : first + ":" + std::to_string(20000 + getpid() % 12000);
  std::vector<std::string> ssh;
  std::istringstream words(o.ssh);
  for (std::string word; words >> word;) ssh.push_back(word);
  if (ssh.empty()) throw BadUsage("--ssh: give a program, and its options");
  std::vector<Child> children;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    std::vector<std::string> command = ssh;
    command.push_back(hosts[rank]);
    command.push_back(remote_line(o, rank, hosts.size(), rendezvous));
    children.emplace_back(command, hosts[rank]);
  }
  // Who ends before rank 0 in another way than well will not come: nobody waits for him.
  std::vector<bool> ended(children.size(), false);
  for (;;) {
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      const auto status = ended[rank] ? std::nullopt : children[rank].wait(WNOHANG);
      if (!status) continue;
      if (rank == 0 && *status <= 2) return *status;
      if (*status != 0)
        throw Failure("host " + children[rank].host() + ": ended with status " +
                      std::to_string(*status) +
                      (*status == 127   ? "; install this program at the same path there"
                       : *status == 255 ? "; does `ssh` reach it without a password?"
                                        : "; see its message above"));
      ended[rank] = true;
    }
    usleep(20000);
  }
}

}  // namespace twinpath::tools::topo
