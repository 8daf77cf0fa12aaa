#pragma once
// The function's InfiniBand port as its queries tell it.
//
// A value; threads: one at a time.
#include <cstdint>

#include "tools/softhca/pci/layouts.h"
#include "tools/softhca/pci/subnet_manager.h"

namespace twinpath::softhca::pci {

class Port {
 public:
  // Functions of one process are on one subnet (subnet.h).
  explicit Port(const PortNames& names) : names_(names) {}

  bool up() const { return up_; }
  void set_up(bool up) { up_ = up; }
  void set_lid(std::uint16_t lid) { names_.lid = lid; }

  mlx5::Refusal query_context(Answer out) const;  // QUERY_HCA_VPORT_CONTEXT
  mlx5::Refusal modify_context(Bytes in);         // MODIFY_HCA_VPORT_CONTEXT
  mlx5::Refusal query_state(Answer out) const;    // QUERY_VPORT_STATE
  mlx5::Refusal query_gids(Bytes in, Answer out) const;
  mlx5::Refusal query_pkeys(Bytes in, Answer out) const;
  mlx5::Refusal access_register(Bytes in, Answer out);
  // Answers a management datagram: nothing that it could ask is here.
  static mlx5::Refusal answer_mad(Bytes in, Answer out);

 private:
  PortNames names_;
  bool up_ = true;
  std::uint32_t set_capabilities_ = 0;  // those that the driver may set
  std::uint8_t description_[64] = "Twinpath soft HCA";
};

}  // namespace twinpath::softhca::pci
