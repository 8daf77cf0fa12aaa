#include "plugin/base/random.h"

#include <sys/random.h>

#include <algorithm>
#include <random>

namespace twinpath {
namespace {

// Throws where neither the processor nor /dev/urandom has any.
void without_getrandom(std::uint8_t* at, std::size_t n) {
  std::random_device device;
  std::generate_n(at, n, [&] { return static_cast<std::uint8_t>(device()); });
}

void fill_random(void* p, std::size_t n) {
  auto* at = static_cast<std::uint8_t*>(p);
  while (n > 0) {
    const ssize_t got = ::getrandom(at, n, 0);
    // Up to 256 bytes fail only where a security profile refuses the call.
    if (got <= 0) return without_getrandom(at, n);
    at += got;
    n -= static_cast<std::size_t>(got);
  }
}

}  // namespace

Nonce random_nonce() {
  Nonce n;
  fill_random(n.data(), n.size());
  return n;
}

std::uint32_t random_24_bits() {
  std::uint32_t v = 0;
  fill_random(&v, 3);
  return v;
}

}  // namespace twinpath
