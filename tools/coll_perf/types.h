#pragma once
// Element types and reductions, with NCCL's numbers, and how a small integer is spelled in each
// type.  All test data are small integers, so every sum is exact in every type and a result can
// be compared byte by byte.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace twinpath::coll {

// Values of ncclDataType_t.
enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  half = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

struct TypeInfo {
  DataType type;
  const char* name;
  std::size_t bytes;
  std::uint32_t max_exact;  // largest n for which 0..n are all exact
};

const TypeInfo& type_info(DataType type);
// "float,bf16" -> types; throws ToolError naming the bad word.  "all" gives every type.
std::vector<DataType> parse_types(const std::string& list);
// Writes `value` (<= max_exact) as one element at `out`.
void encode(DataType type, std::uint32_t value, void* out);
// For messages about wrong elements.
double decode(DataType type, const void* element);

// Values of ncclRedOp_t.
enum class ReduceOp : int { sum = 0, prod = 1, max = 2, min = 3 };
const char* op_name(ReduceOp op);
ReduceOp parse_op(const std::string& word);

}  // namespace twinpath::coll
