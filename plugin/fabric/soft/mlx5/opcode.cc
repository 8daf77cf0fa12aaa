#include "plugin/fabric/soft/mlx5/opcode.h"

namespace twinpath::soft::mlx5 {

const char* name_of(Opcode opcode) {
  switch (opcode) {
#define TP_OPCODE_NAME(name, number, text) \
  case Opcode::name:                       \
    return text;
    TP_OPCODES(TP_OPCODE_NAME)
#undef TP_OPCODE_NAME
  }
  return nullptr;
}

}  // namespace twinpath::soft::mlx5
