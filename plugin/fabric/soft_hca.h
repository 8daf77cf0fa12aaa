#pragma once
// LOWER SEAM, third part: all that the rest of the plugin knows of the software HCA.  It is one
// table of functions; nothing outside plugin/fabric/soft but its own tools and tests includes a
// header of the model (test/lint/layers.py).
//
// Threads: open_soft_hca and soft_hca_is_there from any; the table does not change.  Its functions
// as said.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/fabric/verbs.h"
#include "plugin/gpu/engine.h"

namespace twinpath {

struct Mlx5;

namespace soft {

// One adapter of TWINPATH_SOFT_HCAS, as far as others than the model must know it.
struct Adapter {
  std::string name;
  std::string place;  // words of place_soft_hca (topology/model/place.h)
  int ports = 1;
  int speed_gbps = 0;
  bool up = true;
  bool peermem = false;  // takes GPU memory by its address, too
};

// Memory behind a key.
struct Place {
  gpu::CopyEnd end;  // gpu -1: host memory of this process, or of `pid`
  int pid = 0;       // not 0: host memory of that process
  // Count of a key, which keeps the peer from deregistering it.
  std::atomic<std::uint32_t>* held = nullptr;
  std::uint64_t own = 0;  // GPU memory of this process: its address there, as registered
};

enum class Reached : std::uint8_t {
  yes,
  later,  // being mapped; ask again
  no,     // the queue pair must do it, or find the error
};

// What a GPU-initiated queue needs of the software HCA beside verbs: where the memory behind keys
// lies, so that work requests of kernels are executed in place of the queue pair
// (gda/served/back/soft_back_end.h).  Rights, bounds and protection domains are checked as the
// queue pair would.
//
// The queue pair must be there all the same: it tells who the peer is and whether it can be
// reached, and takes what is out of reach.
//
// Threads: one (the one that posts to the queue pair), except drop() and copy(), from any.
class Reach {
 public:
  Reach() = default;
  virtual ~Reach() = default;
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  // `access`: ibv_access_flags that the key must give.  A Place that was found must be dropped.
  virtual Reached remote(std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                         std::uint32_t access, Place& out) = 0;
  // Not held: memory may not be deregistered while work requests use it (verbs' rule).
  virtual Reached local(std::uint32_t lkey, std::uint64_t address, std::uint64_t bytes,
                        std::uint32_t access, Place& out) const = 0;
  // By the CPU, between host memory; one end at most of another process.  False: the system
  // refuses.
  virtual bool copy(const Place& to, const Place& from, std::uint64_t bytes) const = 0;
  // Whether the queue pair's port is down, here or at the peer: nothing is remote() meanwhile.  Not
  // where the queue pair has ended at either, for then it must find the error.
  virtual bool down() = 0;
  // Copies of equal order stay in order (CopyJob::order).
  virtual std::uint64_t order() const = 0;

  static void drop(Place& place) {
    // Partner: the acquire of who deregisters, and then finds nobody in that memory any more.
    if (place.held != nullptr) place.held->fetch_sub(1, std::memory_order_release);
    place.held = nullptr;
  }
};

}  // namespace soft

struct SoftHca {
  // As load_soft_hca.
  bool (*load)(Verbs& table, const Config& config, std::string& why_not);
  // Once adapters are loaded: the table of the mlx5 model of this process.
  void (*load_mlx5)(Mlx5& table);
  // The adapters of a specification.  False for text that is none: `why` quotes it.
  bool (*adapters)(std::string_view specification, std::vector<soft::Adapter>& out,
                   std::string& why);
  // RoCE version of a GID, which has no sysfs; 0: none.  2 with a table of somebody else's.
  int (*gid_version)(const Verbs& table, ibv_context* context, int index);
  // `qp`: of the software HCA, outlives the result.
  std::unique_ptr<soft::Reach> (*reach)(ibv_qp* qp);
};

// Null, and `why`: it is not to be had.
const SoftHca* open_soft_hca(std::string& why);
// Whether its library is there, which is a package of its own: nobody is told to use what is not.
bool soft_hca_is_there();

}  // namespace twinpath
