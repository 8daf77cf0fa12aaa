#include "plugin/fabric/soft_hca.h"

namespace twinpath {

bool load_soft_hca(Verbs& table, const Config& config, std::string& why_not) {
  const SoftHca* const soft = open_soft_hca(why_not);
  return soft != nullptr && soft->load(table, config, why_not);
}

}  // namespace twinpath
