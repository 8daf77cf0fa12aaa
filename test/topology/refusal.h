#pragma once
// What reading a file says when it refuses it.
#include <string>

#include "test/support/catch.h"
#include "test/topology/data.h"
#include "topology/read/read_machine.h"

namespace twinpath::test {

inline bool contains(const std::string& text, const char* part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// Why reading a file with this text fails.
inline std::string refusal(const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/input.xml";
  spill(path, text);
  std::string why;
  const auto m = read_machine({.path = path}, why);
  CHECK_FALSE(m);
  CHECK(why.find(path) == 0);
  CHECK(why.find('\n') == std::string::npos);
  return why;
}

}  // namespace twinpath::test
