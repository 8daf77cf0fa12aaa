#pragma once
// The InfiniBand subnet of the functions of one process: carries datagrams between their ports, and
// is its own manager, as far as it is asked about paths and groups (subnet_manager.h).
//
// Threads: any; a lock for the list, and one for each port's datagrams.
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "plugin/fabric/soft/mlx5/datagram.h"
#include "tools/softhca/pci/subnet_manager.h"

namespace twinpath::softhca::pci {

class Subnet {
 public:
  class Port : public mlx5::DatagramPort {
   public:
    Port(Subnet& subnet, const PortNames& names) : subnet_(subnet), names_(names) {}
    void send(mlx5::Datagram&& datagram) override;
    std::optional<mlx5::Datagram> receive() override;
    void set_up(bool up);

   private:
    friend class Subnet;
    void take(const mlx5::Datagram& datagram);

    Subnet& subnet_;
    const PortNames names_;
    std::mutex lock_;
    bool up_ = true;
    std::deque<mlx5::Datagram> arrived_;
  };

  // Lives as long as this.
  Port& join(std::uint16_t lid, std::uint64_t guid);

 private:
  void carry(const Port& from, const mlx5::Datagram& datagram);

  std::mutex lock_;
  std::vector<std::unique_ptr<Port>> ports_;
  SubnetManager manager_;
};

}  // namespace twinpath::softhca::pci
