// What a queue pair for each connection costs, and what sharing queue pairs (TWINPATH_QPS_PER_PEER)
// does to small messages: figures that decide whether connections should (proxy/README.md).
//
//   many_connections connect [PEERS] [CONNECTIONS]   queue pairs, memory and time of connecting
//   many_connections behind                          a small message while large ones are under way
//
// Over the soft HCA, or what TWINPATH_FABRIC and NCCL_IB_HCA say; peers use the last device.  Each
// rank is a process of its own, new in each round.  Figures are medians of the rounds.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "test/perf/many_connections.h"

using namespace twinpath;
using namespace twinpath::perf;

namespace {

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void open_many(Rank& r, int rank, int peers, std::size_t each) {
  Board& b = r.board();
  std::vector<int> others;
  for (int peer = 1; peer <= peers; ++peer) others.push_back(peer);
  for (int other = 0; other <= peers; ++other)
    until([&] { return b.ranks[static_cast<std::size_t>(other)].listens.load(); });
  const std::int64_t before = resident_bytes(), made = queue_pairs_made(), began = now_ns();
  if (rank == 0)
    r.reach(others, each);
  else
    r.take(each);
  r.mine().grown = resident_bytes() - before;
  r.mine().connected = true;
  for (int other = 0; other <= peers; ++other)
    until([&] { return b.ranks[static_cast<std::size_t>(other)].connected.load(); });
  if (rank == 0) {
    b.open_ns = now_ns() - began;
    b.queue_pairs = queue_pairs_made() - made;
  }
  const std::int64_t closing = now_ns();
  r.sends.clear();
  r.receives.clear();
  if (rank == 0) b.close_ns = now_ns() - closing;
  ++b.over;
  until([&] { return b.over == peers + 1; });
}

int connect(int peers, int connections) {
  const int each = connections / peers;
  const double n = each * peers;
  std::vector<std::int64_t> pairs, open, close, sender, receiver;
  for (int round = 0; round < kRounds; ++round) {
    const auto b = play(peers, [&](Rank& r, int rank) {
      open_many(r, rank, peers, static_cast<std::size_t>(each));
    });
    pairs.push_back(b->queue_pairs);
    open.push_back(b->open_ns);
    close.push_back(b->close_ns);
    sender.push_back(b->ranks[0].grown);
    receiver.push_back(0);
    for (int peer = 1; peer <= peers; ++peer)
      receiver.back() += b->ranks[static_cast<std::size_t>(peer)].grown;
  }
  std::printf("%.0f connections of one process to %d others: %lld queue pairs\n", n, peers,
              static_cast<long long>(median(pairs)));
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  const auto kib = [n](std::int64_t bytes) { return static_cast<double>(bytes) / n / 1024; };
  std::printf("open %.0f ms, close %.0f ms; sender %.1f KiB, receiver %.1f KiB of each\n",
              ms(median(open)), ms(median(close)), kib(median(sender)), kib(median(receiver)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int peers = argc > 2 ? std::atoi(argv[2]) : 8;
  const int connections = argc > 3 ? std::atoi(argv[3]) : 1000;
  if (what == "behind") return measure_behind();
  if (what == "connect" && peers >= 1 && peers <= kMostPeers && connections >= peers)
    return connect(peers, connections);
  std::fprintf(stderr, "usage: many_connections connect [PEERS, 8] [CONNECTIONS, 1000] | behind\n");
  return 2;
}
