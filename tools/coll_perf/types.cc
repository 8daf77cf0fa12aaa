#include "tools/coll_perf/types.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

constexpr std::array<TypeInfo, 10> kTypes = {{
    {DataType::int8, "int8", 1, 127},
    {DataType::uint8, "uint8", 1, 254},
    {DataType::int32, "int32", 4, 1U << 30},
    {DataType::uint32, "uint32", 4, 1U << 30},
    {DataType::int64, "int64", 8, 1U << 30},
    {DataType::uint64, "uint64", 8, 1U << 30},
    {DataType::half, "half", 2, 2048},
    {DataType::float32, "float", 4, 1U << 24},
    {DataType::float64, "double", 8, 1U << 30},
    {DataType::bfloat16, "bfloat16", 2, 256},
}};

// An integer that half holds exactly, so no rounding is needed.
std::uint16_t half_bits(std::uint32_t value) {
  if (value == 0) return 0;
  const auto exponent = static_cast<std::uint32_t>(std::bit_width(value)) - 1;
  const std::uint32_t mantissa =
      exponent <= 10 ? value << (10 - exponent) : value >> (exponent - 10);
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | (mantissa & 0x3ff));
}

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

template <class T>
void store(void* out, std::uint32_t value) {
  const T element = static_cast<T>(value);
  std::memcpy(out, &element, sizeof element);
}

template <class T>
double load(const void* in) {
  T element;
  std::memcpy(&element, in, sizeof element);
  return static_cast<double>(element);
}

}  // namespace

const TypeInfo& type_info(DataType type) { return kTypes.at(static_cast<std::size_t>(type)); }

std::vector<DataType> parse_types(const std::string& list) {
  std::vector<DataType> out;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "all") {
      for (const TypeInfo& info : kTypes) out.push_back(info.type);
      continue;
    }
    if (word == "bf16") word = "bfloat16";
    if (word == "float32" || word == "fp32") word = "float";
    if (word == "float64" || word == "fp64") word = "double";
    if (word == "float16" || word == "fp16") word = "half";
    if (word == "int") word = "int32";
    const TypeInfo* found = nullptr;
    for (const TypeInfo& info : kTypes) {
      if (word == info.name) found = &info;
    }
    if (found == nullptr) {
      throw ToolError(kExitUsage, "type \"" + word +
                                      "\" is unknown; use int8 uint8 int32 uint32 int64 uint64 "
                                      "half float double bf16, or all");
    }
    out.push_back(found->type);
  }
  return out;
}

void encode(DataType type, std::uint32_t value, void* out) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
      return store<std::uint8_t>(out, value);
    case DataType::int32:
    case DataType::uint32:
      return store<std::uint32_t>(out, value);
    case DataType::int64:
    case DataType::uint64:
      return store<std::uint64_t>(out, value);
    case DataType::float32:
      return store<float>(out, value);
    case DataType::float64:
      return store<double>(out, value);
    case DataType::half:
      return store<std::uint16_t>(out, half_bits(value));
    case DataType::bfloat16:
      // The upper half of the float; the lower is zero because the value has at most 8 bits.
      return store<std::uint16_t>(out,
                                  std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
  }
}

double decode(DataType type, const void* element) {
  switch (type) {
    case DataType::int8:
      return load<std::int8_t>(element);
    case DataType::uint8:
      return load<std::uint8_t>(element);
    case DataType::int32:
      return load<std::int32_t>(element);
    case DataType::uint32:
      return load<std::uint32_t>(element);
    case DataType::int64:
      return load<std::int64_t>(element);
    case DataType::uint64:
      return load<std::uint64_t>(element);
    case DataType::float32:
      return load<float>(element);
    case DataType::float64:
      return load<double>(element);
    case DataType::half:
    case DataType::bfloat16: {
      std::uint16_t bits;
      std::memcpy(&bits, element, sizeof bits);
      if (type == DataType::half) return half_value(bits);
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
  }
  return 0;
}

const char* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::prod:
      return "prod";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

ReduceOp parse_op(const std::string& word) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min}) {
    if (word == op_name(op)) return op;
  }
  throw ToolError(kExitUsage, "reduction \"" + word + "\" is unknown; use sum, prod, max or min");
}

}  // namespace twinpath::coll
