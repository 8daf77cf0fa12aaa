#pragma once
// The objects of a device and who uses whom: what is in use is not destroyed.
//
// Threads: one at a time (the device's lock).
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace twinpath::soft::mlx5 {

enum class Kind {
  uar,
  umem,
  pd,
  srq,
  cq,
  qp,
  // Of those whose commands the kernel alone sends.
  eq,
  mkey,
  xrcd,
  transport_domain,
  user_context,
  counter_set,
};

struct Name {
  Kind kind;
  std::uint32_t number;
  auto operator<=>(const Name&) const = default;
};

class Objects {
 public:
  void add(Name name, std::span<const Name> uses = {});
  bool has(Name name) const { return objects_.count(name) != 0; }
  // Whether it can go now.
  bool in_use(Name name) const;
  // `user` uses `now` in the place of `before`, which it uses.
  void use_instead(Name user, Name before, Name now);
  // Of an object that is there and not in use.
  void remove(Name name);

 private:
  struct Object {
    std::vector<Name> uses;
    int users = 0;
  };
  std::map<Name, Object> objects_;
};

}  // namespace twinpath::soft::mlx5
