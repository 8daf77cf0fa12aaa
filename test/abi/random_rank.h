#pragma once
// One rank of the random client: connections both ways through a table of the plugin, with threads
// as NCCL has them, until the scene's end.
//
// What goes wrong is kept as text: ranks may be in threads of one process.
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "test/abi/net_comms.h"
#include "test/abi/net_loop.h"
#include "test/abi/random_plan.h"

namespace twinpath::test {

class RandomRank {
 public:
  // `peer`: a socket to the other rank, for handles and for one word at the end.  `marks`: one for
  // each of the scene's mixes, shared with the other rank.
  RandomRank(AnyNet& net, const World& world, const Scene& scene, int side, int peer,
             SentMarks* marks);
  // Empty, or what is not as it should be.
  std::string play(LogSink log);
  // What it began to connect and did not end has no owner but the communicator, and that has no end
  // in versions before 11.
  bool leaves_nothing() const { return connected_ || net_.has_context(); }

 private:
  struct Connection {
    std::unique_ptr<SendComm> send;
    std::unique_ptr<RecvComm> recv;
    std::unique_ptr<TrafficEnd> end;
    Comm& comm() { return send ? static_cast<Comm&>(*send) : *recv; }
  };
  // How the other rank has ended; what it says, or that it is there no more.
  enum class Peer : std::uint8_t { there, done, gone };

  int device();
  bool connect(void* ctx);
  void add(void* send, void* recv, std::size_t mix);
  void work(const std::vector<TrafficEnd*>& ends);
  bool go_on(TrafficEnd& end, bool still);
  void watch(std::int64_t ms);
  void register_some();
  bool time_to_leave();
  std::string close();
  void note(const std::string& what);

  AnyNet& net_;
  const World& world_;
  const Scene& scene_;
  const int side_, peer_fd_;
  SentMarks* const marks_;
  const bool may_lose_;
  std::minstd_rand random_;
  RunClock clock_{50 * kMillisecond};
  std::vector<Connection> connections_;
  std::atomic<Peer> peer_{Peer::there};
  std::atomic<bool> leave_{false}, lost_{false};
  bool connected_ = false;
  std::atomic<int> working_{0};
  std::mutex lock_;
  std::string wrong_;
};

}  // namespace twinpath::test
