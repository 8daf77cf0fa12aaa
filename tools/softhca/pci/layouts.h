#pragma once
// Which bits of a command mean something: names and places as in the adapter's reference manual.
// All others are reserved, and a command that sets one is refused; an adapter may be milder, but a
// driver that sets a bit which nobody has named is one to look at.
//
// Constant data; threads: any.
#include <cstdint>
#include <span>
#include <string>

#include "plugin/fabric/soft/mlx5/field.h"
#include "plugin/fabric/soft/mlx5/opcode.h"
#include "plugin/fabric/soft/mlx5/refusal.h"

namespace twinpath::softhca::pci {

namespace mlx5 = soft::mlx5;
using Bytes = std::span<const std::uint8_t>;
using Answer = std::span<std::uint8_t>;

struct NamedField {
  const char* name;
  mlx5::Field field;
};

struct Layout {
  mlx5::Opcode opcode;
  std::uint32_t bytes;         // of the shortest command
  std::uint32_t answer_bytes;  // and of the shortest answer
  std::uint32_t modifiers;     // op_mod is below it
  // Beside the opcode, uid and op_mod.
  std::span<const NamedField> fields{};
  // Of a structure inside, that several commands share, and where it begins.
  std::span<const NamedField> context{};
  std::uint32_t context_at = 0;
  // What follows from here is a list or plain data; 0: nothing does.
  std::uint32_t list_at = 0;
};

// All, in the order of their numbers.
std::span<const Layout> layouts();
// Null for a command that the device does not have.
const Layout* layout_of(mlx5::Opcode opcode);

// Length, modifier and reserved bits.  `at`: the first bit that is wrong, for Refusal::reserved.
mlx5::Refusal check(const Layout& layout, Bytes in, std::size_t answer_bytes, std::uint32_t& at);

// The fields that are not zero, as members of a JSON object without braces: "pd":1,"log_cq_size":4.
std::string show_fields(const Layout& layout, Bytes in);

}  // namespace twinpath::softhca::pci
