#pragma once
// One rank of the random client: connections both ways through a table of the plugin, with threads
// as NCCL has them, until the scene's end.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/abi/net_comms.h"
#include "test/abi/net_loop.h"
#include "test/abi/random_side.h"

namespace twinpath::test {

class RandomRank : private RandomSide {
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
  int device();
  bool connect(void* ctx);
  void add(void* send, void* recv, std::size_t mix);
  void work(const std::vector<TrafficEnd*>& ends);
  bool go_on(TrafficEnd& end, bool still);
  void hint(void* ctx);
  void register_some(void* ctx);
  std::string close();

  AnyNet& net_;
  const World& world_;
  const Scene& scene_;
  SentMarks* const marks_;
  std::minstd_rand random_;
  std::vector<Connection> connections_;
  std::atomic<bool> lost_{false};
  bool connected_ = false;
};

}  // namespace twinpath::test
