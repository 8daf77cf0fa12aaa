#pragma once
// NCCL opened at run time, so that a tool builds and starts where it is absent; what each tool
// calls of it is its own table.
//
// Threads: immutable once it is made.
#include <string>

#include "tools/common/tool_error.h"

namespace twinpath::tools {

class NcclLibrary {
 public:
  // `path` empty: libnccl.so.2 of the loader's search path.  `oldest` is the release that has all
  // functions, `install` what helps where there is no NCCL: both are said.  Throws ToolError.
  // Never closed: NCCL keeps threads until the process ends.
  NcclLibrary(const std::string& path, std::string oldest, const std::string& install);

  const std::string& file() const { return file_; }  // what was opened

  // Throws ToolError where the library lacks it.
  template <class F>
  void find(const char* name, F& function) const {
    find_optional(name, function);
    if (function == nullptr) lacks(name);
  }
  // Null where the library lacks it.
  template <class F>
  void find_optional(const char* name, F& function) const {
    function = reinterpret_cast<F>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  [[noreturn]] void lacks(const char* name) const;

  std::string file_, oldest_;
  void* library_ = nullptr;
};

// 22809 is "2.28.9", 2804 "2.8.4".
std::string nccl_version_text(int version);

// "NCCL error 2 (unhandled system error), last: ..."; `last` may be null or empty.
std::string nccl_error_text(int result, const char* text, const char* last);

}  // namespace twinpath::tools
