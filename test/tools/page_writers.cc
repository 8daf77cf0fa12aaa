// Processes of one node that count, without the work: page_writers PROCESSES PEERS makes as many
// children, each with a page of counters (plugin/base/counter_page.h) that goes on, prints their
// pids once all have counted, and ends with its standard input.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/counter_page.h"

namespace {

using namespace twinpath;

constexpr std::uint64_t kBytes = 65536;

counters::Identity peer(int number) {
  counters::Identity id;
  put_name(id.peer_host, "node" + std::to_string(number / 8));
  put_name(id.peer_gpu, "GPU" + std::to_string(number % 8));
  put_name(id.device, "mlx5_0+mlx5_1");
  put_name(id.gpu, "GPU0");
  put_name(id.path, "PROXY-GDR");
  put_name(id.reason, "I4 U1 U1");
  id.peer_pid = static_cast<std::uint32_t>(1000 + number);
  id.communicator = 7;
  id.session = 1;
  id.role = number % 8 == 7 ? counters::Role::receiver : counters::Role::sender;
  id.rails = 2;
  id.ports[1] = 1;
  return id;
}

void carry(counters::Connection& c) {
  c.rails[0].messages.add(16);
  for (counters::Rail& rail : c.rails) rail.bytes.add(8 * kBytes);
  c.staged_bytes.add(kBytes);
  c.waited_ns[static_cast<std::size_t>(counters::Wait::network)].add(50'000'000);
  c.waited_ns[static_cast<std::size_t>(counters::Wait::peer_cts)].add(20'000'000);
  if (c.identity.role == counters::Role::receiver) return;
  for (std::size_t r = 0; r < 2; ++r) {
    c.rails[r].buckets[counters::bucket_of(40'000)].add(1);
    c.rails[r].timed_ns.add(40'000);
    c.rails[r].permille.set(500);
  }
}

// `counted`: a byte goes there when there is something to see.
[[noreturn]] void count(int peers, pid_t parent, int counted) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);  // it ended before that
  const auto page = CounterPage::create("node99", "test", {});
  if (page == nullptr) std::_Exit(1);
  (void)page->add_port("mlx5_0", "mlx5_0", 1, 400'000);
  (void)page->add_port("mlx5_1", "mlx5_1", 1, 400'000);
  std::vector<ConnectionCounts> all;
  for (int i = 0; i < peers; ++i) all.push_back(page->open(peer(i)));
  counters::CommunicatorIdentity member;
  member.id = 7;
  member.session = 1;
  member.rank = 3;
  member.ranks = 64;
  put_name(member.name, "tp");
  (void)page->begin_communicator(member);
  const auto gin = page->open_gin(0);
  const std::int64_t begin = now_ns();
  for (bool told = false;; told = true) {
    gin->doorbells.add(10);
    gin->operations[1].add(20);
    gin->busy_ns.add(50'000'000);
    for (const ConnectionCounts& c : all) carry(*c.get());
    // One of them stands still.
    all[0].get()->since.set(begin - 2 * kSecond);
    all[0].get()->looked_at.set(now_ns());
    all[0].get()->in_flight.set(1);
    if (!told && (::write(counted, "", 1) != 1 || ::close(counted) != 0)) std::_Exit(1);
    (void)::usleep(250'000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const pid_t self = ::getpid();
  int counted[2];
  if (::pipe(counted) != 0) return 1;
  std::vector<pid_t> children;
  for (int left = std::atoi(argv[1]); left > 0; --left) {
    const pid_t pid = ::fork();
    if (pid < 0) return 1;
    if (pid == 0) count(std::atoi(argv[2]), self, counted[1]);
    children.push_back(pid);
  }
  (void)::close(counted[1]);
  for (const pid_t pid : children) {
    char byte = 0;
    if (::read(counted[0], &byte, 1) != 1) return 1;
    std::printf("%d\n", pid);
  }
  std::fflush(stdout);
  std::fclose(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
