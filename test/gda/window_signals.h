#pragma once
// NCCL 2.30's VA signals: words of a window in GPU memory, raised by all ranks at once, each after
// data; some by two contexts of a rank.
#include "test/gda/gpu_window.h"
#include "test/support/pattern.h"

namespace twinpath::test {

inline KnownBytes signalled_bytes(int rank, int round) {
  return KnownBytes(static_cast<std::size_t>(rank * 50 + round * 7));
}

// `Words`: more than are added to at a time, or as many.
template <int Rounds = 20, std::size_t Words = 40>
std::string window_signals(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  auto second = member.comm->create_context(settings30());
  EXPECT_GIN(second);
  const auto n = static_cast<std::size_t>(r.ranks);
  constexpr std::size_t kBytes = 5000, kPart = 8192, kShared = 64;
  GpuWindow from(*member.comm, kPart), to(*member.comm, kPart * n), words(*member.comm, 4096);
  EXPECT_GIN(from && to && words);
  auto kernel = member.kernel<gda::GinKernel30>();
  gda::GinKernel30 other((*second)->device_handle(), r.rank, kLimit);
  for (int round = 1; round <= Rounds; ++round) {
    signalled_bytes(r.rank, round).fill(from.data(), kBytes);
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(kernel.put(p, to.handle(), static_cast<std::size_t>(r.rank) * kPart, from.handle(), 0,
                         kBytes,
                         {.signal_window = words.handle(),
                          .signal_offset = static_cast<std::uint64_t>(r.rank) * 8}));
      for (std::uint64_t i = 0; i < Words; ++i) {
        TRY_GIN(kernel.signal_word(p, words.handle(), (kShared + i) * 8, i + 1));
        TRY_GIN(other.signal_word(p, words.handle(), (kShared + i) * 8, 100));
      }
      TRY_GIN(kernel.signal(p, 3));
      TRY_GIN(other.signal(p, 3));
    }
    const auto count = static_cast<std::uint64_t>(round);
    for (int p = 0; p < r.ranks; ++p) {
      TRY_GIN(wait_word(words, 8 * static_cast<std::size_t>(p), count));
      const std::uint8_t* data = to.data() + static_cast<std::size_t>(p) * kPart;
      const std::size_t right = signalled_bytes(p, round).differs_at(data, kBytes);
      EXPECT_GIN(right == kBytes, round, p, static_cast<std::int64_t>(right));
      TRY_GIN(kernel.flush(p));
    }
    // A signal of the table comes after those in windows.
    TRY_GIN(kernel.wait_signal(3, count * n));
    TRY_GIN(other.wait_signal(3, count * n));
    for (std::uint64_t i = 0; i < Words; ++i) {
      const std::uint64_t value = words.word((kShared + i) * 8);
      EXPECT_GIN(value == (i + 101) * count * n, round, static_cast<std::int64_t>(i),
                 static_cast<std::int64_t>(value));
    }
    r.meeting->barrier();
  }
  EXPECT_GIN(!member.context->failed() && !(*second)->failed());
  r.meeting->barrier();
  return {};
}

}  // namespace twinpath::test
