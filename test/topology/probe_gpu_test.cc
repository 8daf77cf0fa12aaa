// The probes' CUDA half on a machine with a GPU; the verbs are played.
#include <dlfcn.h>

#include <cerrno>

#include "test/support/catch.h"
#include "test/support/needs.h"
#include "topology/probe/probe.h"
#include "topology/probe/probe_gpus.h"

namespace twinpath {
namespace {

// The driver, loaded and initialised as a program would; false without one or without a GPU.
bool start_cuda() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  return init != nullptr && init(0) == 0 && !cuda_gpus().empty();
}

// Makes GPU 0 the program's, as cudaSetDevice does.
bool use_gpu() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto retain =
      reinterpret_cast<int (*)(void**, int)>(dlsym(library, "cuDevicePrimaryCtxRetain"));
  const auto set = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
  void* context = nullptr;
  return retain(&context, 0) == 0 && set(context) == 0;
}

ibv_mr some_mr;
int exported_fd = -1;
int released = 0;

}  // namespace

TEST_CASE("a GPU's memory is exported and offered for registration, once the program uses it") {
  NEEDS(start_cuda(), "no CUDA driver or no GPU");
  const std::vector<CudaGpu> gpus = cuda_gpus();
  for (const CudaGpu& g : gpus) {
    CAPTURE(g.ordinal, g.bus.text());
    CHECK(cuda_ordinal(g.bus.text()) == g.ordinal);
    CHECK(g.compute_capability >= 50);
    CHECK_FALSE(g.name.empty());
  }

  Verbs verbs;
  verbs.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int fd,
                           int) -> ibv_mr* {
    exported_fd = fd;
    return &some_mr;
  };
  verbs.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) -> ibv_mr* {
    errno = EFAULT;
    return nullptr;
  };
  verbs.dereg_mr = [](ibv_mr*) { return ++released, 0; };
  verbs.query_device = [](ibv_context*, ibv_device_attr*) { return 0; };
  ProbeCache cache(registration_steps(verbs, cuda_memory()));
  ibv_pd pd{};

  const ProbeResults before = cache.get(0, &pd);
  CHECK(before.gdr_untried());
  CHECK(before.dmabuf.note == "the program does not use this GPU");
  CHECK_FALSE(current_cuda_gpu());

  REQUIRE(use_gpu());
  const ProbeResults after = cache.get(0, &pd);
  CAPTURE(after.dmabuf.note, after.peermem.note);
  CHECK(after.peermem.answer == Answer::no);
  CHECK(after.peermem.reason == Reason::gdr_none);
  if (gpus[0].dmabuf == true) {
    CHECK(after.dmabuf.answer == Answer::yes);
    CHECK(exported_fd >= 0);
    CHECK(released == 1);
  } else {
    CHECK(after.dmabuf.answer == Answer::no);
    CHECK(after.dmabuf.reason == Reason::gdr_none);
  }
  CHECK(current_cuda_gpu() == 0);  // the thread's own context is back
}

}  // namespace twinpath
