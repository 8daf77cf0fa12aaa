// Which keys cells have, and which memory they name, alone.
#include "proxy/receive/cell_keys.h"

#include <map>

#include "test/support/catch.h"

namespace twinpath {
namespace {

class Named final : public Memory {};

struct Cells {
  explicit Cells(CellKeys& keys) : keys_(keys) {}
  void add(const Memory* memory, std::uint64_t address, std::uint32_t bytes) {
    const std::uint64_t seq = writer.add(1, false);
    writer.layout().fill(writer.cell(seq), address, bytes, 0, 0, seq, [](int) { return 0u; });
    keys_.remember(seq, memory);
  }
  Queue queue;
  CtsWriter writer{nullptr, CtsLayout(2), queue, 0, 0, {}, true};

 private:
  CellKeys& keys_;
};

TEST_CASE("A cell has the keys of all rails, or of the one in reserve that serves alone") {
  CellKeys keys(true);
  CHECK(keys.rail(0) == 0);
  CHECK(keys.rail(3) == 3);
  keys.use(2);
  CHECK(keys.rail(0) == 2);
  CHECK(keys.rail(3) == 2);
  keys.use(-1);
  CHECK(keys.rail(3) == 3);
}

TEST_CASE("Memory that cells name is found once, that of cells which wait first") {
  CellKeys keys(true);
  Cells cells(keys);
  const Named old, first, second;
  cells.add(&old, 0x5000, 16);
  cells.add(&first, 0x1000, 64);
  cells.add(&first, 0x1040, 64);
  cells.add(&second, 0x9000, 1);
  cells.add(nullptr, 0, 0);
  cells.writer.used(0, 1);
  const std::map<const Memory*, KeyRange> known{{&old, {0x5000, 0x100, {5}}},
                                                {&first, {0x1000, 0x100, {6}}},
                                                {&second, {0x9000, 0x100, {7}}}};
  std::vector<KeyRange> found;
  CHECK(keys.collect(cells.writer, true, found,
                     [&](const Memory* memory, std::uint64_t address,
                         std::uint64_t bytes) -> std::optional<KeyRange> {
                       const auto it = known.find(memory);
                       if (it == known.end() || !it->second.covers(address, bytes))
                         return std::nullopt;
                       return it->second;
                     }));
  REQUIRE(found.size() == 3);
  CHECK(found[0].address == 0x1000);
  CHECK(found[1].address == 0x9000);
  CHECK(found[2].address == 0x5000);
}

TEST_CASE("Memory without a key matters where a cell that waits names it and keys are needed") {
  const Named memory;
  struct {
    bool used, needed, registered;
    std::uint32_t key;
    bool known;
  } const cases[] = {{false, true, true, 7, true},   {false, true, true, 0, false},
                     {false, true, false, 0, false}, {true, true, false, 0, true},
                     {true, true, true, 0, true},    {false, false, true, 0, true},
                     {false, false, false, 0, true}};
  for (const auto& c : cases) {
    CAPTURE(c.used, c.needed, c.registered, c.key);
    CellKeys keys(true);
    Cells cells(keys);
    cells.add(&memory, 0x1000, 8);
    if (c.used) cells.writer.used(0, 1);
    std::vector<KeyRange> found;
    const bool known =
        keys.collect(cells.writer, c.needed, found,
                     [&](const Memory*, std::uint64_t, std::uint64_t) -> std::optional<KeyRange> {
                       if (!c.registered) return std::nullopt;
                       return KeyRange{0x1000, 8, {c.key}};
                     });
    CHECK(known == c.known);
    CHECK(found.size() == (c.registered ? 1 : 0));
  }
}

TEST_CASE("Of the ring's cells none is asked for that was before it") {
  CellKeys keys(true);
  Cells cells(keys);
  const Named memory;
  for (std::uint64_t seq = 0; seq < 2 * kCtsCells; ++seq) {
    cells.add(&memory, 0x1000 * (seq + 1), 8);
    cells.writer.used(seq, 1);
  }
  std::vector<KeyRange> found;
  CHECK(keys.collect(cells.writer, true, found,
                     [](const Memory*, std::uint64_t address, std::uint64_t) {
                       return std::optional(KeyRange{address, 8, {1}});
                     }));
  REQUIRE(found.size() == kCtsCells);
  CHECK(found.front().address == 0x1000 * (std::uint64_t{kCtsCells} + 1));
}

}  // namespace
}  // namespace twinpath
