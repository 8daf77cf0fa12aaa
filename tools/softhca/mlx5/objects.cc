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

int Objects::remove_locked(Name name, std::vector<std::function<void()>>& gone) {
  auto it = objects_.find(name);
  if (it == objects_.end()) return EINVAL;
  if (it->second.users != 0) return EBUSY;
  for (const Name& used : it->second.uses) {
    auto other = objects_.find(used);
    if (--other->second.users != 0 || !other->second.gone) continue;
    gone.push_back(std::move(other->second.gone));
    objects_.erase(other);  // a doorbell page, which uses nothing
  }
  objects_.erase(name);
  return 0;
}

int Objects::remove(Name name) {
  std::vector<std::function<void()>> gone;
  int result = 0;
  {
    std::lock_guard hold(lock_);
    result = remove_locked(name, gone);
  }
  for (const auto& call : gone) call();
  return result;
}

int Objects::remove_when_free(Name name, std::function<void()> gone) {
  {
    std::lock_guard hold(lock_);
    std::vector<std::function<void()>> none;
    const int result = remove_locked(name, none);
    if (result == EBUSY) objects_.at(name).gone = std::move(gone);
    if (result != 0) return result;
  }
  gone();
  return 0;
}

Objects& objects() {
  // Global because the calls of libmlx5 have no argument to carry it; never destroyed because
  // programs destroy objects from exit handlers.
  static auto* const all = new Objects;
  return *all;
}

}  // namespace twinpath::softhca::mlx5
