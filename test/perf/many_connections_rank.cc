// One rank of many_connections.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "plugin/base/options.h"
#include "test/perf/many_connections.h"

namespace twinpath::perf {
namespace {

constexpr int kAtOnce = 8;  // connections in the making, to each peer

// The table has plain function pointers, so this is static.
struct Made {
  static inline Verbs real;
  static inline std::int64_t queue_pairs = 0;
  static void count(Verbs& verbs) {
    real = verbs;
    verbs.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* init) {
      ++queue_pairs;
      return real.create_qp(pd, init);
    };
  }
};

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "many_connections: %s\n", what);
  ::_exit(1);
}

std::int64_t queue_pairs_made() { return Made::queue_pairs; }

Rank::Rank(Board& board, int rank, const std::string& job)
    : board_(board), mine_(board.ranks[static_cast<std::size_t>(rank)]) {
  Config config = config_from_environment();
  if (config.fabric == FabricChoice::automatic) config.fabric = FabricChoice::soft;
  config.soft_job = job;
  auto fabric = open_fabric(config);
  if (!fabric) fail("no fabric");
  Made::count((*fabric)->verbs);
  auto transport = make_proxy_transport(std::move(fabric).take(), config);
  if (!transport || (*transport)->device_count() == 0) fail("no device");
  transport_ = std::move(transport).take();
  device_ = rank == 0 ? 0 : static_cast<int>(transport_->device_count()) - 1;
  auto session = transport_->open_session({1, -1});
  if (!session) fail("no session");
  session_ = std::move(session).take();
  if (session_->listen(device_, mine_.handle, listener_) != Status::ok) fail("cannot listen");
  mine_.listens = true;
}

void Rank::take(std::size_t wanted) {
  until([&] {
    std::unique_ptr<RecvComm> comm;
    const Status s = listener_->accept(comm);
    if (s != Status::ok && s != Status::again) fail("accept");
    if (s == Status::ok) receives.push_back(std::move(comm));
    return receives.size() == wanted;
  });
}

void Rank::reach(const std::vector<int>& ranks, std::size_t wanted_each) {
  struct Making {
    std::array<std::uint8_t, kHandleBytes> handle;
    bool ended = false;
  };
  std::vector<std::vector<Making>> making(ranks.size());
  std::vector<std::size_t> begun(ranks.size());
  for (const int r : ranks)
    until([&] { return board_.ranks[static_cast<std::size_t>(r)].listens.load(); });
  const std::size_t all = sends.size() + wanted_each * ranks.size();
  until([&] {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (; making[i].size() < kAtOnce && begun[i] < wanted_each; ++begun[i])
        making[i].push_back({board_.ranks[static_cast<std::size_t>(ranks[i])].handle});
      for (Making& m : making[i]) {
        std::unique_ptr<SendComm> comm;
        const Status s = session_->connect(device_, m.handle, comm);
        if (s != Status::ok && s != Status::again) fail("connect");
        m.ended = s == Status::ok;
        if (m.ended) sends.push_back(std::move(comm));
      }
      std::erase_if(making[i], [](const Making& m) { return m.ended; });
    }
    return sends.size() == all;
  });
}

// One round: `peers` and rank 0, whose board is returned.
std::unique_ptr<Board, void (*)(Board*)> play(int peers, const Part& part) {
  static int round = 0;
  void* shared =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("no memory");
  std::unique_ptr<Board, void (*)(Board*)> board(
      new (shared) Board, [](Board* b) { (void)::munmap(b, sizeof(Board)); });
  const std::string job = "many-" + std::to_string(::getpid()) + "-" + std::to_string(++round);
  for (int rank = 0; rank <= peers; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) fail("no process");
    if (child != 0) continue;
    {
      Rank mine(*board, rank, job);
      part(mine, rank);
    }
    ::_exit(0);
  }
  bool failed = false;
  for (int rank = 0, status = 0; rank <= peers; ++rank)
    failed = ::wait(&status) < 0 || status != 0 || failed;
  if (failed) fail("a rank failed");
  return board;
}

}  // namespace twinpath::perf
