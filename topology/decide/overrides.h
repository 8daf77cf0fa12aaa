#pragma once
// The user's word on placement: settings of the environment, and the platform file.
//
// Precedence, strongest first: NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ, TWINPATH_MODE and
// TWINPATH_PEER_MODE; rates of the platform file; its classes; what was read from the machine.
//
// The platform file has one statement a line, # begins a comment, * stands for any:
//
//   GPU 0000:17:00.0 HCA mlx5_0 CLASS PIX               # as if they shared a switch
//   GPU * HCA mlx5_1 CLASS PHB READ 12.1 WRITE 24.0     # measured, GB/s
//   HCA mlx5_4 IGNORE                                   # never used
//   HCA mlx5_0 RAIL 0
//
// Of several statements about one thing the last one holds.  A statement that cannot be read is
// reported and skipped, the others hold.
//
// Threads: plain values.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "topology/decide/policy.h"
#include "topology/model/distance.h"

namespace twinpath {

// NCCL_NET_GDR_LEVEL: LOC, PIX, PXB, P2C/C2C/PXN, PHB, NODE, SOCK, SYS in any case, or NCCL's old
// numbers 0..5.  nullopt for other text, and for "".
std::optional<Distance> parse_gdr_level(std::string_view text);

// What an end's settings are for a peer of that rank (-1: NCCL did not tell).
EndSettings end_settings(const Config& config, int peer_rank);

struct PairOverride {
  std::optional<Distance> distance;
  std::optional<double> read_gbs;
  std::optional<double> write_gbs;
  friend bool operator==(const PairOverride&, const PairOverride&) = default;
};

class PlatformFile {
 public:
  static PlatformFile parse(std::string_view text);
  // An empty file and the cause in errors() when it cannot be read.
  static PlatformFile load(const std::string& path);

  // `gpu` as "0000:17:00.0" or as CUDA writes it.
  PairOverride pair(std::string_view gpu, std::string_view hca) const;
  bool ignores(std::string_view hca) const;
  std::optional<int> rail(std::string_view hca) const;
  bool empty() const { return pairs_.empty() && hcas_.empty(); }
  // "line 3: class 'PIXX' is none of ...", one a bad statement.
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  struct PairLine {
    std::string gpu, hca;  // empty: any
    PairOverride what;
  };
  struct HcaLine {
    std::string hca;
    bool ignore = false;
    std::optional<int> rail;
  };
  std::string statement(std::vector<std::string_view> words);

  std::vector<PairLine> pairs_;
  std::vector<HcaLine> hcas_;
  std::vector<std::string> errors_;
};

// Puts a pair's overrides into its facts.
void apply(const PairOverride& from, EndFacts& facts);

// Settings that contradict each other, one line each with what holds; empty when none do.
std::vector<std::string> contradictions(const Config& config);

}  // namespace twinpath
