// The software HCA as a library (plugin/fabric/soft_library.h): whom it refuses, and that what a
// process has once is its host's.  Nothing of the model or of plugin/gpu is linked in here.
#include "plugin/fabric/soft_library.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/base/version.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;

namespace {

SoftHcaEntry* entry() {
  const char* const path = std::getenv("TWINPATH_TEST_SOFTHCA");
  void* const library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  INFO((path != nullptr ? path : "TWINPATH_TEST_SOFTHCA is not set"));
  REQUIRE(library != nullptr);
  auto* const found = reinterpret_cast<SoftHcaEntry*>(dlsym(library, kSoftHcaEntry));
  REQUIRE(found != nullptr);
  return found;
}

alignas(4096) char page[4096];
int asked = 0;  // calls of the host's functions; the test's thread makes them

// A host with a dma-buf that turns out to be ordinary memory.
SoftHost host() {
  SoftHost h;
  h.build = built_from();
  h.log = &log_state();
  h.find_dmabuf = [](int, gpu::DmabufMemory& out) {
    ++asked;
    out = {reinterpret_cast<std::uintptr_t>(page), sizeof page};
    return true;
  };
  h.inspect_pointer = [](const void*) {
    ++asked;
    return gpu::PointerInfo{};
  };
  return h;
}

std::string refusal(const SoftHost& h, std::vector<std::uint32_t> sizes) {
  const char* why = nullptr;
  REQUIRE(entry()(&h, sizes.data(), sizes.size(), &why) == nullptr);
  REQUIRE(why != nullptr);
  return why;
}

}  // namespace

TEST_CASE("a library of another build is not used", "[softhca]") {
  const std::vector<std::uint32_t> sizes(kSoftHcaSizes.begin(), kSoftHcaSizes.end());
  SoftHost other = host();
  other.build = "0.0.9 (0123456789ab)";
  CHECK(refusal(other, sizes) == std::string("it is ") + built_from());
  auto longer = sizes;
  ++longer[4];
  CHECK(refusal(host(), longer) == "its structures have other sizes");
  auto fewer = sizes;
  fewer.pop_back();
  CHECK(refusal(host(), fewer) == "its structures have other sizes");
}

TEST_CASE("log and GPU memory of the library are its host's", "[softhca]") {
  static const SoftHost ours = host();
  const char* why = "nothing";
  const SoftHca* const hca = entry()(&ours, kSoftHcaSizes.data(), kSoftHcaSizes.size(), &why);
  REQUIRE(hca != nullptr);
  CHECK(why == nullptr);

  Config config;
  config.soft_job = "library-test";
  std::string text;
  config.soft_hcas = "soft0,colour=blue";
  Verbs verbs;
  CHECK_FALSE(hca->load(verbs, config, text));
  CHECK(text.find("colour") != std::string::npos);
  config.soft_hcas = "soft0";
  REQUIRE(hca->load(verbs, config, text));

  const test::LogCapture log;  // set after the library was opened
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  REQUIRE(count == 1);
  ibv_context* const context = verbs.open_device(list[0]);
  verbs.free_device_list(list);
  REQUIRE(context != nullptr);
  ibv_pd* const pd = verbs.alloc_pd(context);
  const unsigned long before = warnings_logged();
  const int asked_before = asked;
  CHECK(verbs.reg_dmabuf_mr(pd, 0, sizeof page, 0, 0, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  CHECK(asked >= asked_before + 2);
  CHECK(log.has(LogLevel::warn, "is not CUDA memory of this process"));
  CHECK(warnings_logged() == before + 1);
  CHECK(verbs.dealloc_pd(pd) == 0);
  CHECK(verbs.close_device(context) == 0);
}
