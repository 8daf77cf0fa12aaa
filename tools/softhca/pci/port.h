#pragma once
// The function's InfiniBand port as its queries tell it.
//
// A value; threads: one at a time.
#include <cstdint>

#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

class Port {
 public:
  // LIDs and GUIDs differ by `function`: functions of one process are on one subnet, which the
  // model manages itself (its own LID is that of the manager).
  explicit Port(unsigned function) : function_(function) {}

  bool up() const { return up_; }
  void set_up(bool up) { up_ = up; }
  std::uint16_t lid() const { return static_cast<std::uint16_t>(function_ + 1); }
  std::uint64_t node_guid() const { return kFirstGuid + 16 * function_; }
  std::uint64_t port_guid() const { return node_guid() + 1; }

  mlx5::Refusal query_context(Answer out) const;  // QUERY_HCA_VPORT_CONTEXT
  mlx5::Refusal modify_context(Bytes in);         // MODIFY_HCA_VPORT_CONTEXT
  mlx5::Refusal query_state(Answer out) const;    // QUERY_VPORT_STATE
  mlx5::Refusal query_gids(Bytes in, Answer out) const;
  mlx5::Refusal query_pkeys(Bytes in, Answer out) const;
  mlx5::Refusal access_register(Bytes in, Answer out);
  // Answers a management datagram: nothing that it could ask is here.
  static mlx5::Refusal answer_mad(Bytes in, Answer out);

 private:
  static constexpr std::uint64_t kFirstGuid = 0x0275000000000100;  // locally administered
  unsigned function_;
  bool up_ = true;
  std::uint32_t set_capabilities_ = 0;  // those that the driver may set
  std::uint8_t description_[64] = "Twinpath soft HCA";
};

}  // namespace twinpath::softhca::pci
