#pragma once
// What a GPU-initiated queue needs of the software HCA beside verbs: where the memory behind keys
// lies, so that work requests of kernels are executed in place of the queue pair (gda/
// soft_back_end.h).  Rights, bounds and protection domains are checked as the queue pair would.
//
// The queue pair must be there all the same: it tells who the peer is and whether it can be
// reached, and takes what is out of reach.
//
// Threads: one (the one that posts to the queue pair), except drop(), from any.
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "plugin/fabric/soft/keys.h"

namespace twinpath::soft {

class Peer;
class Link;
struct LinkEnd;
struct SoftQp;

// Memory behind a key.
struct Place {
  CopyEnd end;  // gpu -1: host memory of this process, or of `pid`
  int pid = 0;  // not 0: host memory of that process
  // Count of a key, which keeps the peer from deregistering it.
  std::atomic<std::uint32_t>* held = nullptr;
  std::uint64_t own = 0;  // GPU memory of this process: its address there, as registered
};

enum class Reached : std::uint8_t {
  yes,
  later,  // being mapped; ask again
  no,     // the queue pair must do it, or find the error
};

class Reach {
 public:
  // `qp`: of the software HCA, outlives this.
  explicit Reach(ibv_qp* qp);
  ~Reach();
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  // `access`: ibv_access_flags that the key must give.  A Place that was found must be dropped.
  Reached remote(std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                 std::uint32_t access, Place& out);
  // Not held: memory may not be deregistered while work requests use it (verbs' rule).
  Reached local(std::uint32_t lkey, std::uint64_t address, std::uint64_t bytes,
                std::uint32_t access, Place& out) const;
  static void drop(Place& place) {
    if (place.held != nullptr) KeyView::drop(place.held);
    place.held = nullptr;
  }

  // Copies of equal order stay in order (CopyJob::order).
  std::uint64_t order() const;

 private:
  bool bind();

  SoftQp& qp_;
  // Of the joined queue pair; null before.
  std::shared_ptr<Link> link_;
  std::shared_ptr<Peer> peer_;  // null: the peer is in this process
  LinkEnd* mine_ = nullptr;
  const LinkEnd* theirs_ = nullptr;
};

// By the CPU, between host memory; one end at most of another process.  False: the system refuses.
bool copy_host(const Place& to, const Place& from, std::uint64_t bytes);

}  // namespace twinpath::soft
