#include "plugin/fabric/soft/mlx5/objects.h"

#include <algorithm>

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

void Objects::use_instead(Name user, Name before, Name now) {
  std::vector<Name>& uses = objects_.at(user).uses;
  *std::find(uses.begin(), uses.end(), before) = now;
  --objects_.at(before).users;
  ++objects_.at(now).users;
}

void Objects::remove(Name name) {
  for (const Name& used : objects_.at(name).uses) --objects_.at(used).users;
  objects_.erase(name);
}

}  // namespace twinpath::soft::mlx5
