#pragma once
// The InfiniBand subnet of the functions of one process, and of one job: carries datagrams between
// their ports, and is its own manager, as far as it is asked about paths and groups
// (subnet_manager.h).
//
// Threads: any; a lock for the list, and one for each port's datagrams.  One of its own listens to
// other processes (trunk.h), which may come and go.
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/mlx5/datagram.h"
#include "tools/softhca/pci/subnet_manager.h"
#include "tools/softhca/pci/trunk.h"

namespace twinpath::softhca::pci {

class Subnet {
 public:
  class Port : public mlx5::DatagramPort {
   public:
    Port(Subnet& subnet, const PortNames& names) : subnet_(subnet), names_(names) {}
    void send(mlx5::Datagram&& datagram) override;
    std::optional<mlx5::Datagram> receive() override;
    void set_up(bool up);
    void set_lid(std::uint16_t lid);
    // Datagrams have no acknowledgements to lose.
    void lose(soft::PortLoss what);

   private:
    friend class Subnet;
    void take(const mlx5::Datagram& datagram);

    Subnet& subnet_;
    std::mutex lock_;
    PortNames names_;  // changes under both locks
    bool up_ = true;
    soft::PortLoss loss_ = soft::PortLoss::none;
    std::deque<mlx5::Datagram> arrived_;
  };

  Subnet() = default;
  ~Subnet();
  Subnet(const Subnet&) = delete;
  Subnet& operator=(const Subnet&) = delete;

  // Once: with the subnets of the other processes of this job.  False, and `why` for the user: this
  // cannot be had.
  bool connect(const std::string& job, std::string& why);
  // Lives as long as this.
  Port& join(std::uint16_t lid, std::uint64_t guid);

 private:
  void carry(const Port& from, const mlx5::Datagram& datagram);
  void deliver(const mlx5::Datagram& datagram);
  void listen(const std::stop_token& stop);

  std::mutex lock_;
  std::vector<std::unique_ptr<Port>> ports_;
  SubnetManager manager_;
  std::unique_ptr<Trunk> trunk_;
  std::jthread listener_;
};

}  // namespace twinpath::softhca::pci
