#pragma once
// What the driver asked and what it got, a JSON object a line; and a line on stderr for each kind
// of refusal, once.
//
// Threads: one at a time.
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tools/softhca/pci/function.h"

namespace twinpath::softhca::pci {

class Trace {
 public:
  // `path` empty: refusals are said only.  False when the file cannot be written.
  bool open(const std::string& path);
  void command(unsigned function, Bytes in, Bytes out, const Outcome& outcome);
  // Anything else that happened: {"event":"port down"}.
  void event(unsigned function, const char* what);

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  unsigned long long lines_ = 0;
  std::set<std::pair<unsigned, mlx5::Refusal>> said_;
};

}  // namespace twinpath::softhca::pci
