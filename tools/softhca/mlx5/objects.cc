#include "tools/softhca/mlx5/objects.h"

#include <cerrno>

namespace twinpath::softhca::mlx5 {

Name Objects::add(Kind kind, const ibv_context* context, std::initializer_list<Name> uses) {
  std::lock_guard hold(lock_);
  const Name name{kind, ++last_ & 0xffffff};
  Object& made = objects_[name];
  made.context = context;
  for (const Name& used : uses) {
    auto it = objects_.find(used);
    if (it == objects_.end() || it->second.context != context) continue;
    ++it->second.users;
    made.uses.push_back(used);
  }
  return name;
}

int Objects::remove(Name name) {
  std::lock_guard hold(lock_);
  auto it = objects_.find(name);
  if (it == objects_.end()) return EINVAL;
  if (it->second.users != 0) return EBUSY;
  for (const Name& used : it->second.uses) --objects_.at(used).users;
  objects_.erase(it);
  return 0;
}

Objects& objects() {
  // Global because the calls of libmlx5 have no argument to carry it; never destroyed because
  // programs destroy objects from exit handlers.
  static auto* const all = new Objects;
  return *all;
}

}  // namespace twinpath::softhca::mlx5
