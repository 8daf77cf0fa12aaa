#pragma once
// What tests of the tables of GIN and of RMA say alike.
#include <cstdlib>
#include <string_view>

#include "plugin/nccl/context.h"
#include "test/abi/any_one_sided.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

extern "C" const twinpath::abi::ncclNet_v12_t ncclNetPlugin_v12;

namespace twinpath::test {

inline void* const kGarbage = reinterpret_cast<void*>(std::uintptr_t{0xA5A5A5A0});
inline constexpr std::uint64_t kCommId = 0xC0FFEE;

inline bool turned_off(const char* setting) {
  const char* off = std::getenv(setting);
  return off != nullptr && std::string_view(off) == "0";
}

// NET keeps its devices.
inline void check_off(AnyOneSided& t) {
  void* ctx = kGarbage;
  CHECK(t.init(&ctx, kCommId, current_sink()) == abi::ncclSuccess);
  CHECK(ctx == nullptr);
  int n = -1;
  CHECK(t.devices(&n) == abi::ncclSuccess);
  CHECK(n == 0);
  CHECK(t.finalize(ctx) == abi::ncclSuccess);
  CHECK(ncclNetPlugin_v12.devices(&n) == abi::ncclSuccess);
  CHECK(n == 2);
}

// Its case has to be the first of the program.
inline void check_before_init(AnyOneSided& t) {
  REQUIRE(Context::get() == nullptr);
  int n = -1;
  Handle handle{};
  void* listener = kGarbage;
  CHECK(t.devices(&n) == abi::ncclInvalidUsage);
  CHECK(n == 0);
  CHECK(t.listen(nullptr, 0, handle.data(), &listener) == abi::ncclInvalidUsage);
  CHECK(listener == nullptr);
  CHECK(t.finalize(nullptr) == abi::ncclSuccess);
}

}  // namespace twinpath::test
