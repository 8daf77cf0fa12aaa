#pragma once
// Memory of this process as a device reaches it, of the host or of a GPU: a wrong address is an
// error, not a crash, because programs may free what they registered.  Threads: any.
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plugin/fabric/soft/mlx5/completion.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"
#include "plugin/fabric/soft/mlx5/work.h"

namespace twinpath::soft::mlx5 {

inline bool read_host_memory(std::uint64_t address, void* to, std::size_t bytes) {
  iovec here{to, bytes}, there{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

// The driver reserves a GPU's addresses without access for the processor.
inline bool read_memory(const Surroundings& around, std::uint64_t address, void* to,
                        std::size_t bytes) {
  return read_host_memory(address, to, bytes) ||
         (around.read_elsewhere != nullptr && around.read_elsewhere(address, to, bytes));
}

// A word of a doorbell record; false when it cannot be read.
inline bool read_record(const Surroundings& around, std::uint64_t address, std::uint32_t& value) {
  if (read_host_memory(address, &value, sizeof value) && address % sizeof value == 0) {
    // It is there.  Acquire: what the program wrote before the record is seen with it, also where
    // the word of another queue has led here.
    value = std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address))
                .load(std::memory_order_acquire);
  } else if (!read_memory(around, address, &value, sizeof value)) {
    return false;
  }
  value = __builtin_bswap32(value);
  return true;
}

// The same of the host's memory, written; false when it is not that.
inline bool write_record(std::uint64_t address, std::uint32_t value) {
  std::uint32_t there = 0;
  if (address % sizeof value != 0 || !read_host_memory(address, &there, sizeof there)) return false;
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address))
      .store(__builtin_bswap32(value), std::memory_order_release);
  return true;
}

// Moves `index` on to the one whose lowest `bits` the record tells.  One that is more than `depth`
// ahead was not written yet, or is not used by the program: it changes nothing.  False when the
// record cannot be read.
inline bool follow_record(const Surroundings& around, std::uint64_t address, unsigned bits,
                          std::uint64_t depth, std::uint64_t& index) {
  std::uint32_t told = 0;
  if (!read_record(around, address, told)) return false;
  index = extend_index(index, told, bits, depth).value_or(index);
  return true;
}

// The second half of a completion, which has all that is not zero, as one store where the processor
// has one: nothing comes between its bytes.  False where it has none.
inline bool write_half_at_once([[maybe_unused]] std::uint32_t* to,
                               [[maybe_unused]] const std::uint32_t* from) {
#if defined(__x86_64__)
  static const bool able = __builtin_cpu_supports("avx") != 0;
  if (!able || reinterpret_cast<std::uintptr_t>(to) % 32 != 0) return false;
  // Release: what was written before is seen by whoever acquires the last word.  The processor
  // keeps stores in order anyhow; a word is left as it is.
  std::atomic_ref<std::uint32_t>(to[7]).fetch_or(0, std::memory_order_release);
  asm volatile(
      "vmovdqu (%1), %%ymm0\n\t"
      "vmovdqa %%ymm0, (%0)\n\t"
      "vzeroupper"
      :
      : "r"(to), "r"(from)
      : "memory", "xmm0");
  return true;
#else
  return false;
#endif
}

// Writes a completion, whose last word tells that it is there.  An adapter writes the whole at
// once, and programs that fill their queue with zeros take the first other byte for a completion.
// So does this, but for processors that cannot: there words follow each other, and a thread that is
// stopped between two of them shows such programs half an entry.
inline bool write_entry(const Surroundings& around, std::uint64_t address,
                        const std::array<std::uint8_t, kEntryBytes>& bytes) {
  std::array<std::uint32_t, 16> words;
  std::array<std::uint32_t, 16> there;
  constexpr std::size_t kLast = 4, kHalf = words.size() / 2;
  if (address % sizeof(std::uint64_t) != 0 ||
      !read_host_memory(address, there.data(), sizeof there))
    return around.write_elsewhere != nullptr &&
           around.write_elsewhere(address, bytes.data(), bytes.size(), kLast);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  auto* const to = reinterpret_cast<std::uint32_t*>(address);
  // Release: whoever sees the last word sees the others, and the data that came before.  Of 4
  // bytes, as kernels read it: order holds between accesses of one size.
  const auto put = [&](std::size_t i) {
    std::atomic_ref<std::uint32_t>(to[i]).store(words[i], std::memory_order_release);
  };
  for (std::size_t i = 0; i < kHalf; ++i) put(i);
  if (write_half_at_once(to + kHalf, words.data() + kHalf)) return true;
  for (std::size_t i = kHalf; i < words.size(); ++i) put(i);
  return true;
}

}  // namespace twinpath::soft::mlx5
