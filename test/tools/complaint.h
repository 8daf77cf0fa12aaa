#pragma once
// What a call complains of.
#include <string>

#include "tools/common/tool_error.h"

namespace twinpath::tools {

// The message of the Kind that `call` throws; "" when it throws none of that kind.
template <class Kind, class F>
std::string complaint(F call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return "";
}

// The same of a ToolError that leads to this exit status.
template <class F>
std::string complaint(F call, ExitCode code = kExitUsage) {
  try {
    call();
  } catch (const ToolError& error) {
    return error.code() == code ? error.what() : "(another exit status)";
  }
  return "";
}

inline bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace twinpath::tools
