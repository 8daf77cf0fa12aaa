#pragma once
// Suites that are run over other adapters than the model's own: TWINPATH_TEST_LIKE=bnxt_re makes
// each adapter of a specification like that one.
#include <algorithm>
#include <cstdlib>
#include <string>

namespace twinpath::test {

inline std::string as_like(const std::string& hcas) {
  const char* const like = std::getenv("TWINPATH_TEST_LIKE");
  if (like == nullptr || *like == '\0') return hcas;
  std::string out;
  for (std::size_t begin = 0; begin <= hcas.size();) {
    const std::size_t end = std::min(hcas.find(',', begin), hcas.size());
    const std::string item = hcas.substr(begin, end - begin);
    out += (begin == 0 ? "" : ",") + item;
    if (item.find('=') == std::string::npos) out += std::string(",like=") + like;
    begin = end + 1;
  }
  return out;
}

}  // namespace twinpath::test
