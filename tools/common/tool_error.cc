#include "tools/common/tool_error.h"

namespace twinpath::tools {

int exit_code_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const ToolError*>(&error)) return own->code();
  return dynamic_cast<const BadUsage*>(&error) != nullptr ? kExitUsage : kExitFailed;
}

}  // namespace twinpath::tools
