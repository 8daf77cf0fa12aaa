#include "plugin/fabric/soft/mlx5/shared_receives.h"

#include <array>
#include <cstdio>
#include <vector>

#include "plugin/fabric/soft/mlx5/carrier.h"
#include "plugin/fabric/soft/mlx5/field.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"
#include "plugin/fabric/soft/mlx5/work.h"

namespace twinpath::soft::mlx5 {
namespace {

// In front of an entry's pieces.  It is read when the entry is given: the program names the next
// before it gives one.
constexpr Field kNextEntry{16, 16};
constexpr std::size_t kHeadBytes = 16;

}  // namespace

bool SharedReceives::look(const Surroundings& around) {
  // The record's upper half is the program's own matter.
  if (broken_ || !follow_record(around, facts_.record, 16, facts_.entries, told_)) return false;
  bool moved = false;
  while (!broken_ && given_ != told_) {
    broken_ = !give_next(around);
    moved = true;
  }
  return moved;
}

bool SharedReceives::give_next(const Surroundings& around) {
  std::vector<std::uint8_t> entry(facts_.entry_bytes);
  bool given = read_memory(around, facts_.receives + std::uint64_t{next_} * entry.size(),
                           entry.data(), entry.size());
  const std::vector<Piece> pieces =
      given ? read_receive(std::span(entry).subspan(kHeadBytes)) : std::vector<Piece>{};
  std::vector<ibv_sge> list;
  for (const Piece& piece : pieces) list.push_back({piece.address, piece.bytes, piece.key});
  ibv_recv_wr wr{next_ | Carrier::kReceive, nullptr, list.data(), static_cast<int>(list.size())};
  ibv_recv_wr* bad = nullptr;
  const auto following = static_cast<std::uint32_t>(get(entry, kNextEntry));
  given = given && following < facts_.entries && ibv_post_srq_recv(to_, &wr, &bad) == 0;
  if (!given && around.say != nullptr) {
    std::array<char, 128> line;
    (void)std::snprintf(line.data(), line.size(),
                        "shared receive queue 0x%x, entry %u: it cannot be given (next %u of %u)",
                        facts_.number, next_, following, facts_.entries);
    around.say(line.data());
  }
  next_ = following;
  ++given_;
  return given;
}

}  // namespace twinpath::soft::mlx5
