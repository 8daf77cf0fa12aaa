#pragma once
// Queue pairs that were halted and replaced, destroyed by a thread of their own.  To destroy one
// may take its adapter seconds where its port is down (soft-RoCE waits for packets that wait for
// their neighbour's address: 3 s), and a connection that goes on over another port, and all that
// wait for the hub's lock, need not wait with it.  In error since halt(), it receives nothing.
//
// Until it is destroyed, its completions have their room in the CQ: the share goes back with it.
//
// Threads: any; `give_back` is called by the grave's.  The destructor waits for all.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

class CompletionEngine;

class QueueGrave {
 public:
  using GiveBack = std::function<void(CompletionEngine*, int)>;
  explicit QueueGrave(GiveBack give_back) : give_back_(std::move(give_back)) {}
  ~QueueGrave();
  QueueGrave(const QueueGrave&) = delete;
  QueueGrave& operator=(const QueueGrave&) = delete;

  // Destroys it here and now if no thread can be had.
  void bury(Owned<ibv_qp> qp, CompletionEngine* engine, int entries);

 private:
  struct Body {
    Owned<ibv_qp> qp;
    CompletionEngine* engine = nullptr;
    int entries = 0;
  };
  bool start();
  void run();
  void destroy(Body body);

  const GiveBack give_back_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Body> bodies_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace twinpath
