#pragma once
// The objects that programs made through libmlx5, and who uses whom: an object in use is not
// destroyed (EBUSY).
//
// Threads: any.
#include <infiniband/verbs.h>

#include <cstdint>
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

 private:
  struct Object {
    const ibv_context* context;
    std::vector<Name> uses;
    int users = 0;
  };
  std::mutex lock_;
  std::uint32_t last_ = 0x100;
  std::map<Name, Object> objects_;
};

// Those of this process.
Objects& objects();

}  // namespace twinpath::softhca::mlx5
