#include "tools/softhca/mlx5/cuda_register.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace twinpath::softhca::mlx5 {
namespace {

constexpr std::size_t kBytes = 8;
// Portable (known in every context) and mapped (the GPU has an address of it).
constexpr unsigned kFlags = 1 | 2;

bool asked() {
  const char* const value = std::getenv("SOFTHCA_REGISTER_UAR");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

CudaRegister::CudaRegister(void* address) {
  if (!asked()) return;
  // Only a driver that the program has loaded has a context for its kernels.
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    std::fprintf(stderr,
                 "soft HCA: SOFTHCA_REGISTER_UAR=1, but the program has not loaded libcuda.so.1\n");
    return;
  }
  using Register = int (*)(void*, std::size_t, unsigned);
  const auto add = reinterpret_cast<Register>(dlsym(driver, "cuMemHostRegister_v2"));
  unregister_ = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuMemHostUnregister"));
  const int result = add == nullptr || unregister_ == nullptr ? -1 : add(address, kBytes, kFlags);
  if (result == 0) {
    address_ = address;
    return;
  }
  std::fprintf(stderr,
               "soft HCA: CUDA error %d when the doorbell register was registered; is a context "
               "current in the thread that allocates the page?\n",
               result);
}

CudaRegister::~CudaRegister() {
  // May wait for kernels; a failure leaves the page registered until the process ends.
  if (address_ != nullptr) (void)unregister_(address_);
}

}  // namespace twinpath::softhca::mlx5
