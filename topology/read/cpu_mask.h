#pragma once
// A set of CPUs as hwloc writes it: "0x0000000f,0xffffffff", words of 32 bits, highest first; an
// empty word is zero, and "0xf...f" in front means all higher CPUs, too.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace twinpath {

class CpuMask {
 public:
  // nullopt for anything else, and for more than 16384 CPUs.
  static std::optional<CpuMask> parse(std::string_view text);
  bool empty() const;
  bool within(const CpuMask& other) const;

 private:
  std::uint32_t word(std::size_t i) const { return i < words_.size() ? words_[i] : rest_; }

  std::vector<std::uint32_t> words_;  // lowest first
  std::uint32_t rest_ = 0;            // every word beyond
};

}  // namespace twinpath
