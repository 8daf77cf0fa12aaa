#include "test/vm/faults/remote_end.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"
#include "test/vm/faults/network.h"

namespace twinpath::test {
namespace {

constexpr int kTick = 50;  // ms between two snapshots

// What the two programs tell each other; they are one build.
struct Orders {
  std::array<std::uint8_t, kHandleBytes> handle{};
  bool handle_ready = false, finish = false, pause = false, quit = false;
  int round = 0;
};
struct Report {
  std::array<std::uint8_t, kHandleBytes> handle{};
  bool handle_ready = false;
  int pid = 0, round = 0;
  Phase phase = Phase::starting;
  std::uint64_t messages = 0, bytes = 0;
  std::int64_t longest_pause = 0;
  Status status = Status::ok;
  std::array<char, 16> call{};
  std::array<char, 200> wrong{};
  int warnings = 0;
  std::array<std::array<char, 1800>, EndState::kMaxWarnings> texts{};
};

bool send_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

// The newest whole T that has arrived; false at the end of the connection.
template <class T>
class Newest {
 public:
  bool take(int fd, T& out, bool& any) {
    any = false;
    for (;;) {
      const ssize_t n = ::recv(fd, reinterpret_cast<char*>(&buffer_) + have_,
                               sizeof buffer_ - have_, MSG_DONTWAIT);
      if (n < 0) return true;  // no more now
      if (n == 0) return false;
      have_ += static_cast<std::size_t>(n);
      if (have_ < sizeof buffer_) continue;
      out = buffer_;
      any = true;
      have_ = 0;
    }
  }

 private:
  T buffer_{};
  std::size_t have_ = 0;
};

// The part of a Config that cases set.
std::string plan_text(Side side, const EndPlan& plan, const std::vector<std::size_t>& sizes) {
  std::ostringstream out;
  const Config& c = plan.config;
  out << static_cast<int>(side) << ' ' << c.ib_hca << ' ' << c.socket_ifname << ' ' << c.ib_timeout
      << ' ' << c.ib_retry_cnt << ' ' << c.ib_gid_index << ' ' << c.connect_timeout_ms << ' '
      << plan.window << ' ' << plan.merge << ' ' << plan.peer_timeout_ms;
  for (const std::size_t size : sizes) out << ' ' << size;
  return out.str();
}

Side read_plan(const std::string& text, EndPlan& plan, std::vector<std::size_t>& sizes) {
  std::istringstream in(text);
  Config& c = plan.config;
  int side = 0;
  in >> side >> c.ib_hca >> c.socket_ifname >> c.ib_timeout >> c.ib_retry_cnt >> c.ib_gid_index >>
      c.connect_timeout_ms >> plan.window >> plan.merge >> plan.peer_timeout_ms;
  for (std::size_t size = 0; in >> size;) sizes.push_back(size);
  c.fabric = FabricChoice::verbs;
  return static_cast<Side>(side);
}

// A connection to the agent, with a command line told; it may take `limit_ms` to be there.
UniqueFd agent(const std::string& line, int limit_ms) {
  const char* peer = std::getenv("RXE_PEER");
  const std::string text = peer == nullptr ? "" : peer;
  const std::size_t colon = text.find(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (colon == std::string::npos ||
      ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &to.sin_addr) != 1)
    return {};
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(text.c_str() + colon + 1)));
  for (const std::int64_t end = now_ns() + limit_ms * kMillisecond; now_ns() < end; rest_ms(50)) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{1, 0};
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) continue;
    const int on = 1;
    (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (send_all(fd.get(), (line + "\n").data(), line.size() + 1)) return fd;
  }
  return {};
}

std::string own_program() {
  std::array<char, 1024> path{};
  return ::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0 ? path.data() : "vm-faults";
}

void pass_on(const Report& r, Shared& shared, Side side) {
  EndState& s = shared.end(side);
  s.pid.store(r.pid);
  s.messages.store(r.messages);
  s.bytes.store(r.bytes);
  s.longest_pause.store(r.longest_pause);
  s.status.store(r.status);
  s.call = r.call;
  s.wrong = r.wrong;
  for (int i = s.warnings.load(); i < r.warnings; ++i) {
    LoggedWarning& w = s.warning[static_cast<std::size_t>(i)];
    w.at = now_ns();
    w.text = r.texts[static_cast<std::size_t>(i)];
  }
  s.warnings.store(r.warnings);
  if (side == Side::receiver && r.handle_ready && r.round == shared.round.load() &&
      !shared.handle_ready.load()) {
    shared.handle = r.handle;
    shared.handle_ready.store(true);
  }
  if (r.phase != s.phase.load()) s.ended_at.store(now_ns());
  s.phase.store(r.phase);
  s.round.store(r.round);
}

Report report_of(Shared& shared, Side side) {
  EndState& s = shared.end(side);
  Report r;
  r.round = s.round.load();
  r.phase = s.phase.load();  // before what belongs to it
  r.pid = s.pid.load();
  r.messages = s.messages.load();
  r.bytes = s.bytes.load();
  r.longest_pause = s.longest_pause.load();
  r.status = s.status.load();
  r.call = s.call;
  r.wrong = s.wrong;
  r.warnings = s.warnings.load();
  for (int i = 0; i < r.warnings; ++i)
    r.texts[static_cast<std::size_t>(i)] = s.warning[static_cast<std::size_t>(i)].text;
  r.handle_ready = shared.handle_ready.load();
  r.handle = shared.handle;
  return r;
}

}  // namespace

void run_remote_end(Shared& shared, Side side, const EndPlan& plan,
                    const std::vector<std::size_t>& sizes) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd fd =
      agent("exec " + own_program() + " --end '" + plan_text(side, plan, sizes) + "'", 60000);
  Newest<Report> newest;
  for (bool open = static_cast<bool>(fd); open;) {
    Report r;
    bool any = false;
    open = newest.take(fd.get(), r, any);
    if (any) pass_on(r, shared, side);
    Orders o;
    o.round = shared.round.load();
    o.handle_ready = side == Side::sender && shared.handle_ready.load();
    o.handle = shared.handle;
    o.finish = shared.finish.load();
    o.pause = shared.pause.load();
    o.quit = shared.quit.load();
    open = open && send_all(fd.get(), &o, sizeof o) && !o.quit;
    rest_ms(kTick);
  }
  _exit(0);
}

int serve_remote_end(const std::string& text) {
  EndPlan plan;
  std::vector<std::size_t> sizes;
  const Side side = read_plan(text, plan, sizes);
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto* shared = new (memory) Shared;
  pid_t pid = ::fork();
  if (pid == 0) {
    (void)::dup2(STDERR_FILENO, STDOUT_FILENO);
    run_end(*shared, side, plan, sizes);
  }
  Newest<Orders> newest;
  for (bool open = pid > 0; open && !shared->quit.load();) {
    Orders o;
    bool any = false;
    open = newest.take(STDIN_FILENO, o, any);
    if (any) {
      if (o.round != shared->round.load() && side == Side::receiver)
        shared->handle_ready.store(false);
      if (side == Side::sender) {
        if (o.handle_ready) shared->handle = o.handle;
        shared->handle_ready.store(o.handle_ready);
      }
      shared->finish.store(o.finish);
      shared->pause.store(o.pause);
      shared->round.store(o.round);
      shared->quit.store(o.quit);
    }
    const Report r = report_of(*shared, side);
    open = open && send_all(STDOUT_FILENO, &r, sizeof r);
    rest_ms(kTick);
  }
  shared->quit.store(true);
  for (int i = 0; i < 200 && ::waitpid(pid, nullptr, WNOHANG) == 0; ++i) rest_ms(10);
  (void)::kill(pid, SIGKILL);
  return 0;
}

UniqueFd start_there(const std::string& command, int limit_ms) { return agent(command, limit_ms); }

bool run_there(const std::string& command, int limit_ms, std::string* output) {
  const UniqueFd fd = agent(command, limit_ms);
  std::string said;
  for (const std::int64_t end = now_ns() + limit_ms * kMillisecond; fd && now_ns() < end;) {
    pollfd p{fd.get(), POLLIN, 0};
    if (::poll(&p, 1, 50) <= 0) continue;
    std::array<char, 512> part;
    const ssize_t n = ::recv(fd.get(), part.data(), part.size(), 0);
    if (n <= 0) break;
    said.append(part.data(), static_cast<std::size_t>(n));
  }
  if (output != nullptr) *output = said;
  return said.find("status=0") != std::string::npos;
}

}  // namespace twinpath::test
