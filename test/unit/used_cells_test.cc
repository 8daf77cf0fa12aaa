// Which cells a receiver knows to be used, alone: what completions and the sender's count say.
#include "proxy/receive/used_cells.h"

#include <random>
#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

TEST_CASE("Cells that are used in order end at once, others with the last one before them") {
  UsedCells cells;
  cells.used(0, 1);
  CHECK(cells.ended() == 1);
  cells.used(1, 8);
  CHECK(cells.ended() == 9);
  cells.used(10, 2);
  cells.used(13, 1);
  CHECK(cells.ended() == 9);
  cells.used(9, 1);
  CHECK(cells.ended() == 12);
  cells.used(12, 1);
  CHECK(cells.ended() == 14);
  // Nothing is left over for the ring's next round.
  for (std::uint64_t seq = 14; seq < 14 + 2 * kCtsCells; ++seq) {
    cells.used(seq, 1);
    CHECK(cells.ended() == seq + 1);
  }
}

TEST_CASE("The sender's count ends cells without completion, and no others") {
  UsedCells cells;
  for (const std::uint64_t seq : {0u, 2u, 3u, 6u}) cells.no_completion(seq);
  cells.told(3, 8);
  CHECK(cells.ended() == 1);
  cells.used(1, 1);
  CHECK(cells.ended() == 3);
  cells.told(3, 8);
  CHECK(cells.ended() == 3);
  cells.told(5, 8);
  CHECK(cells.ended() == 4);
  cells.told(7, 8);
  CHECK(cells.ended() == 4);
  cells.used(4, 2);
  CHECK(cells.ended() == 7);
  cells.used(7, 1);
  CHECK(cells.ended() == 8);
}

TEST_CASE("A count of cells that were never posted, or less than the last one, is not heeded") {
  UsedCells cells;
  for (std::uint64_t seq = 0; seq < 6; ++seq) cells.no_completion(seq);
  cells.told(5, 4);
  CHECK(cells.ended() == 0);
  cells.told(2, 4);
  CHECK(cells.ended() == 2);
  for (const std::uint32_t nonsense : {1u, 0u, 5u, ~0u}) {
    CAPTURE(nonsense);
    cells.told(nonsense, 4);
    CHECK(cells.ended() == 2);
  }
  cells.told(4, 4);
  CHECK(cells.ended() == 4);
}

TEST_CASE("The sender's count goes on when its low half begins anew") {
  constexpr std::uint64_t kWrap = std::uint64_t{1} << 32;
  UsedCells cells;
  // Receives with completion as far as shortly before; the count comes in steps that it can tell.
  cells.used(0, static_cast<unsigned>(kWrap - 2));
  cells.told(~0u - 3, kWrap - 2);
  for (std::uint64_t seq = kWrap - 2; seq < kWrap + 3; ++seq) cells.no_completion(seq);
  cells.told(~0u, kWrap + 3);
  CHECK(cells.ended() == kWrap - 1);
  cells.told(1, kWrap + 3);
  CHECK(cells.ended() == kWrap + 1);
  cells.told(3, kWrap + 3);
  CHECK(cells.ended() == kWrap + 3);
}

TEST_CASE("Whatever the order, the cells known to be used are those before the first that is not") {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    std::mt19937 random(seed);
    UsedCells cells;
    enum class Cell { waits, silent, over };
    std::vector<Cell> all;
    std::uint64_t ended = 0, told = 0;
    for (int step = 0; step < 4000; ++step) {
      CAPTURE(seed, step);
      const auto chance = random() % 8;
      if (chance < 4 && all.size() - ended < kCtsCells) {
        all.push_back(chance == 0 ? Cell::silent : Cell::waits);
        if (chance == 0) cells.no_completion(all.size() - 1);
      } else if (chance == 4) {
        told += random() % (all.size() - told + 1);
        for (std::uint64_t seq = ended; seq < told; ++seq)
          if (all[seq] == Cell::silent) all[seq] = Cell::over;
        cells.told(static_cast<std::uint32_t>(told), all.size());
      } else if (all.size() != ended) {
        const std::uint64_t seq = ended + random() % (all.size() - ended);
        if (all[seq] != Cell::waits) continue;
        all[seq] = Cell::over;
        cells.used(seq, 1);
      }
      while (ended != all.size() && all[ended] == Cell::over) ++ended;
      REQUIRE(cells.ended() == ended);
    }
    CHECK(ended > kCtsCells);
  }
}

}  // namespace
}  // namespace twinpath
