#pragma once
// Memory of this process as a device reaches it: a wrong address is an error, not a crash, because
// programs may free what they registered.  Threads: any.
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace twinpath::softhca::mlx5 {

inline bool read_memory(std::uint64_t address, void* to, std::size_t bytes) {
  iovec here{to, bytes}, there{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

inline bool write_memory(std::uint64_t address, const void* from, std::size_t bytes) {
  iovec here{const_cast<void*>(from), bytes}, there{reinterpret_cast<void*>(address), bytes};
  return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

// A word of a doorbell record; false when it cannot be read.
inline bool read_record(std::uint64_t address, std::uint32_t& value) {
  if (!read_memory(address, &value, sizeof value)) return false;
  value = __builtin_bswap32(value);
  return true;
}

// Writes a completion, whose last word tells that it is there.  An adapter writes the whole at
// once; here words follow each other without a pause.  That is not only for speed: programs that
// fill their queue with zeros take the first other byte for a completion.
inline void write_entry(std::uint64_t address, const std::array<std::uint8_t, 64>& bytes) {
  std::array<std::uint64_t, 8> words;
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::array<std::uint64_t, 8> there;
  if (address % sizeof(std::uint64_t) != 0 || !read_memory(address, there.data(), sizeof there)) {
    (void)write_memory(address, bytes.data(), bytes.size());  // or not at all
    return;
  }
  auto* const to = reinterpret_cast<std::uint64_t*>(address);
  for (std::size_t i = 0; i < words.size(); ++i) {
    // Release: whoever sees the last word sees the others, and the data that came before.
    std::atomic_ref<std::uint64_t>(to[i]).store(words[i], std::memory_order_release);
  }
}

}  // namespace twinpath::softhca::mlx5
