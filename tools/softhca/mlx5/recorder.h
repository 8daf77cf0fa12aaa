#pragma once
// Writes what programs ask of the device to a file (TWINPATH_SOFT_RECORD), a JSON object a line;
// the README of tools/softhca has the format.  Several processes may append to one file: each line
// is one write.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct ibv_context;

namespace twinpath::softhca::mlx5 {

// One call: begun, told what went in and came out, and written.  Costs nothing when nothing is
// recorded.  Not copied, one thread.
class Record {
 public:
  Record(std::string_view call, const ibv_context* context);
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  Record& number(std::string_view key, std::uint64_t value);
  Record& text(std::string_view key,
               std::string_view value);  // without quotes or control characters
  Record& bytes(std::string_view key,
                std::span<const std::uint8_t> value);  // as hexadecimal digits
  // The call's outcome: 0 or an errno value.
  void write(int result);

 private:
  std::string line_;  // empty: nothing is recorded
};

}  // namespace twinpath::softhca::mlx5
