#pragma once
// The built plugin: one dlopen, as NCCL does it.  TWINPATH_TEST_PLUGIN names the library.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "test/abi/any_net.h"
#include "test/support/catch.h"

namespace twinpath::test {

class BuiltPlugin {
 public:
  BuiltPlugin() : BuiltPlugin(std::getenv("TWINPATH_TEST_PLUGIN")) {}
  explicit BuiltPlugin(const char* name) {
    library_ = ::dlopen(name == nullptr ? "./libnccl-net.so" : name, RTLD_NOW | RTLD_LOCAL);
    INFO((library_ == nullptr ? ::dlerror() : ""));
    REQUIRE(library_ != nullptr);
    nets = all_versions([this](const char* symbol) { return find(symbol); });
    REQUIRE(nets.size() == 7);
  }
  ~BuiltPlugin() { ::dlclose(library_); }
  BuiltPlugin(const BuiltPlugin&) = delete;
  BuiltPlugin& operator=(const BuiltPlugin&) = delete;
  const void* find(const char* symbol) const { return ::dlsym(library_, symbol); }

  std::vector<std::unique_ptr<AnyNet>> nets;

 private:
  void* library_ = nullptr;
};

}  // namespace twinpath::test
