// host_copy: see host_copy.h.
//
//   build/test/perf/host_copy                     all variants, two processes
//   build/test/perf/host_copy --one-process       the ranks are two threads of one process
//   build/test/perf/host_copy --threads 0,3 --share 64,256 --bytes 512k --seconds 2
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "test/perf/host_copy.h"

using namespace twinpath::perf;

namespace {

constexpr const char* kUsage =
    "usage: host_copy [--one-process] [--threads 0,1,2,3,4,8] [--share KIB,...] [--bytes N[k|m]]\n"
    "                 [--qps 1..64] [--window N] [--slots N] [--seconds S] [--huge] [--no-raw]\n"
    "                 [--both-only]\n";

[[noreturn]] void usage() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

std::size_t bytes_of(const char* text) {
  char* end = nullptr;
  std::size_t n = std::strtoul(text, &end, 10);
  if (*end == 'k') n <<= 10;
  if (*end == 'm') n <<= 20;
  return n;
}

std::vector<int> list_of(const char* text) {
  std::vector<int> all;
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    all.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    if (end == at) usage();
    at = *end == ',' ? end + 1 : end;
  }
  return all;
}

struct Command {
  Settings settings;
  bool one_process = false, raw = true, one_way = true;
  std::vector<int> threads{0, 1, 2, 3, 4, 6, 8}, shares{0, 64, 256};
};

Command parse(int argc, char** argv) {
  Command c;
  Settings& s = c.settings;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--one-process") {
      c.one_process = true;
    } else if (name == "--huge") {
      s.huge = true;
    } else if (name == "--no-raw") {
      c.raw = false;
    } else if (name == "--both-only") {
      c.one_way = false;
    } else {
      if (++i == argc) usage();
      if (name == "--threads")
        c.threads = list_of(argv[i]);
      else if (name == "--share")
        c.shares = list_of(argv[i]);
      else if (name == "--bytes")
        s.bytes = bytes_of(argv[i]);
      else if (name == "--qps")
        s.queue_pairs = std::atoi(argv[i]);
      else if (name == "--window")
        s.window = std::atoi(argv[i]);
      else if (name == "--slots")
        s.slots = std::atoi(argv[i]);
      else if (name == "--seconds")
        s.seconds = std::atof(argv[i]);
      else
        usage();
    }
  }
  if (s.queue_pairs < 1 || s.queue_pairs > 64 || s.window < 1 || s.window > 32 || s.slots < 1 ||
      s.bytes < 4096 || s.bytes > std::size_t{1} << 30 || s.seconds <= 0)
    usage();
  return c;
}

std::vector<Variant> variants_of(const Command& c) {
  std::vector<Variant> all;
  for (const bool both : {true, false}) {
    if (!both && !c.one_way) continue;
    // Stores past the caches are possible where both ends are mapped.
    for (const bool stream : {false, true}) {
      if (stream && !c.one_process) continue;
      for (const int n : c.threads) {
        if (c.raw) all.push_back({Way::raw, both, n + 1, 0, stream});
      }
      for (const int share : c.shares) {
        for (const int n : c.threads) {
          // Without helpers there is no share.
          if (n == 0 && (share != c.shares.front() || stream)) continue;
          all.push_back({Way::hca, both, n, static_cast<std::size_t>(share) << 10, stream});
        }
      }
    }
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const Command command = parse(argc, argv);
  const std::vector<Variant> variants = variants_of(command);
  void* p =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return 1;
  Board& board = *new (p) Board;
  const Settings& s = command.settings;
  std::printf(
      "# %d queue pairs, messages of %zu KiB, %d of each under way, %d buffers of each, %s\n",
      s.queue_pairs, s.bytes >> 10, s.window, s.slots,
      command.one_process ? "one process" : "two processes");
  std::fflush(stdout);
  if (command.one_process) {
    std::thread other([&] { play(board, 1, true, s, variants); });
    play(board, 0, true, s, variants);
    other.join();
    return board.failed ? 1 : 0;
  }
  const pid_t parent = ::getpid();
  std::array<pid_t, 2> ranks{};
  for (int r = 0; r < 2; ++r) {
    ranks[static_cast<std::size_t>(r)] = ::fork();
    if (ranks[static_cast<std::size_t>(r)] != 0) continue;
    play(board, r, false, s, variants);
    std::fflush(stdout);
    ::_exit(board.failed ? 1 : 0);
  }
  int worst = ::getpid() == parent ? 0 : 1;
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    (void)::wait(&status);
    if (status != 0) {
      worst = 1;
      board.failed = true;  // the other need not wait for it
    }
  }
  return worst;
}
