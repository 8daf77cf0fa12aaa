// The 128 bytes that NCCL carries from a listener to its peer, possibly cut short or foreign.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plugin/rdma/handle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  std::string why;
  Handle handle;
  if (!decode_handle({data, size}, handle, why) && why.empty()) std::abort();

  // The same bytes with our own magic and everything else in place, so that the checks behind
  // the first are reached too.
  std::array<std::uint8_t, kHandleBytes> whole{};
  encode_handle(handle, whole);
  for (std::size_t i = 0; i + 1 < size && i < 8; i += 2)
    whole[data[i] % kHandleBytes] ^= data[i + 1];
  why.clear();
  if (!decode_handle(whole, handle, why) && why.empty()) std::abort();

  std::array<std::uint8_t, kHandleBytes> padded{};
  std::copy_n(data, std::min(size, padded.size()), padded.begin());
  std::uint64_t connection = 0;
  (void)load_connection(padded, connection);
  store_connection(padded, 7);
  if (!load_connection(padded, connection) || connection != 7) std::abort();
  return 0;
}
