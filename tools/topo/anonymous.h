#pragma once
// Text without what tells whose it is: known names, and whatever looks like an
// address (IPv4, IPv6, GID, GUID, MAC).  The same one gets the same word each
// time, so that a reader still sees who talks to whom.
//
// Threads: one.
#include <map>
#include <string>
#include <string_view>

namespace twinpath::tools::topo {

class Anonymous {
 public:
  // `name` becomes KIND-1, KIND-2, ... by order; as a whole word only.  Empty
  // ones and what is no secret ("localhost") are left.
  void hide(std::string_view kind, const std::string& name);
  std::string operator()(std::string_view text);

 private:
  std::string word_for(const std::string& token);

  std::map<std::string, std::string> names_;      // by name
  std::map<std::string, std::string> addresses_;  // by address
  std::map<std::string, int, std::less<>> counts_;
};

}  // namespace twinpath::tools::topo
