#include "plugin/fabric/soft/mlx5/objects.h"

namespace twinpath::soft::mlx5 {

void Objects::add(Name name, std::span<const Name> uses) {
  Object& made = objects_[name];
  for (const Name& used : uses) {
    ++objects_.at(used).users;
    made.uses.push_back(used);
  }
}

bool Objects::in_use(Name name) const {
  auto it = objects_.find(name);
  return it != objects_.end() && it->second.users != 0;
}

void Objects::remove(Name name, Calls& gone) {
  for (const Name& used : objects_.at(name).uses) {
    Object& other = objects_.at(used);
    if (--other.users != 0 || !other.gone) continue;
    gone.push_back(std::move(other.gone));
    objects_.erase(used);  // such are doorbell pages, which use nothing
  }
  objects_.erase(name);
}

void Objects::remove_with_last_user(Name name, std::function<void()> gone) {
  objects_.at(name).gone = std::move(gone);
}

}  // namespace twinpath::soft::mlx5
