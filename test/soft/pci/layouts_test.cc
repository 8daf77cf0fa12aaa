// Commands against their layouts: what is reserved, what is too short.
#include <vector>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "test/support/catch.h"
#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Refusal;

// A command of the layout that says nothing.
std::vector<std::uint8_t> plain(const Layout& layout) {
  std::vector<std::uint8_t> in(layout.bytes);
  mlx5::set(in, mlx5::kOpcode, static_cast<std::uint64_t>(layout.opcode));
  return in;
}

bool has(std::span<const NamedField> fields, std::uint32_t at, std::uint32_t bit) {
  for (const NamedField& f : fields) {
    const mlx5::Field here = f.field.at(at);
    if (bit >= here.bit && bit < here.bit + here.width) return true;
  }
  return false;
}

Refusal refusal_of(const Layout& layout, Bytes in, std::size_t answer, std::uint32_t& at) {
  return check(layout, in, answer, at);
}

TEST_CASE("layouts are found by their numbers, and each has a name") {
  std::uint16_t last = 0;
  for (const Layout& layout : layouts()) {
    CHECK(static_cast<std::uint16_t>(layout.opcode) > last);
    last = static_cast<std::uint16_t>(layout.opcode);
    CHECK(layout_of(layout.opcode) == &layout);
    CHECK(mlx5::name_of(layout.opcode) != nullptr);
  }
  CHECK(layout_of(static_cast<mlx5::Opcode>(0x110)) == nullptr);
  CHECK(layout_of(static_cast<mlx5::Opcode>(0)) == nullptr);
  CHECK(layout_of(static_cast<mlx5::Opcode>(0xffff)) == nullptr);
}

TEST_CASE("fields lie inside their commands and on no bit of another") {
  for (const Layout& layout : layouts()) {
    INFO(mlx5::name_of(layout.opcode));
    const std::size_t end = layout.list_at == 0 ? layout.bytes : layout.list_at;
    std::vector<bool> taken(8 * end);
    const auto take = [&](std::span<const NamedField> fields, std::uint32_t at) {
      for (const NamedField& f : fields) {
        INFO(f.name);
        const mlx5::Field here = f.field.at(at);
        REQUIRE(here.bit + here.width <= 8 * end);
        for (std::uint32_t bit = here.bit; bit < here.bit + here.width; ++bit) {
          CHECK_FALSE(taken[bit]);
          taken[bit] = true;
        }
      }
    };
    take(layout.fields, 0);
    take(layout.context, layout.context_at);
  }
}

TEST_CASE("each bit of each command is a field's or reserved") {
  for (const Layout& layout : layouts()) {
    INFO(mlx5::name_of(layout.opcode));
    const std::uint32_t end = layout.list_at == 0 ? layout.bytes : layout.list_at;
    for (std::uint32_t bit = 64; bit < 8 * end; ++bit) {
      INFO(bit);
      std::vector<std::uint8_t> in = plain(layout);
      mlx5::set(in, {bit, 1}, 1);
      const bool named = has(layout.fields, 0, bit) || has(layout.context, layout.context_at, bit);
      std::uint32_t at = 0;
      const Refusal got = refusal_of(layout, in, layout.answer_bytes, at);
      REQUIRE(got == (named ? Refusal::none : Refusal::reserved));
      if (!named) REQUIRE(at == bit);
    }
  }
}

TEST_CASE("commands and answers that are too short, and modifiers that there are not") {
  for (const Layout& layout : layouts()) {
    INFO(mlx5::name_of(layout.opcode));
    std::vector<std::uint8_t> in = plain(layout);
    std::uint32_t at = 0;
    CHECK(refusal_of(layout, in, layout.answer_bytes, at) == Refusal::none);
    CHECK(refusal_of(layout, Bytes(in).first(in.size() - 1), layout.answer_bytes, at) ==
          Refusal::short_command);
    CHECK(refusal_of(layout, in, layout.answer_bytes - 1, at) == Refusal::short_answer);
    mlx5::set(in, mlx5::kOpMod, layout.modifiers);
    CHECK(refusal_of(layout, in, layout.answer_bytes, at) == Refusal::no_modifier);
  }
}

TEST_CASE("what follows a command without a list is reserved, too") {
  const Layout& layout = *layout_of(mlx5::Opcode::enable_hca);
  std::vector<std::uint8_t> in = plain(layout);
  in.resize(in.size() + 8);
  std::uint32_t at = 0;
  CHECK(refusal_of(layout, in, layout.answer_bytes, at) == Refusal::none);
  in.back() = 1;
  CHECK(refusal_of(layout, in, layout.answer_bytes, at) == Refusal::reserved);
  CHECK(at == 8 * in.size() - 1);
}

TEST_CASE("fields are shown by their names, unless they are 0") {
  const Layout& layout = *layout_of(mlx5::Opcode::create_cq);
  std::vector<std::uint8_t> in = plain(layout);
  mlx5::set(in, mlx5::cq::kUarPage, 16);
  mlx5::set(in, mlx5::cq::kLogSize, 11);
  CHECK(show_fields(layout, in) == R"("log_cq_size":11,"uar_page":16)");
}

}  // namespace
}  // namespace twinpath::softhca::pci
