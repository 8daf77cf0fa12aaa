#pragma once
// The objects that programs made through libmlx5, and who uses whom: an object in use is not
// destroyed (EBUSY).
//
// Threads: any.
#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace twinpath::softhca::mlx5 {

enum class Kind { uar, umem, cq, qp, other };

// An object by kind and number.  Numbers are never given twice in a process, and never 0: programs
// take 0 for none.
struct Name {
  Kind kind;
  std::uint32_t number;
  auto operator<=>(const Name&) const = default;
};

class Objects {
 public:
  // A new object of `context` that uses those of `uses` that exist there.  Nobody checks the others
  // until the device is modelled.
  Name add(Kind kind, const ibv_context* context, std::initializer_list<Name> uses = {});
  // 0, EBUSY while something uses it, EINVAL when there is none.
  int remove(Name name);
  // For a call that cannot fail: removes the object once nothing uses it any more, and then calls
  // `gone`, here or in the remove() of the last user; never under a lock.  As remove() otherwise.
  int remove_when_free(Name name, std::function<void()> gone);

 private:
  struct Object {
    const ibv_context* context;
    std::vector<Name> uses;
    std::function<void()> gone;  // set: to be removed with its last user
    int users = 0;
  };
  int remove_locked(Name name, std::vector<std::function<void()>>& gone);

  std::mutex lock_;
  std::uint32_t last_ = 0x100;
  std::map<Name, Object> objects_;
};

// Those of this process.
Objects& objects();

}  // namespace twinpath::softhca::mlx5
