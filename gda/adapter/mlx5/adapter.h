#pragma once
// One opened adapter, as our commands see it: its table of calls, numbers, capabilities, and what
// is said when a command is refused.
//
// Threads: any after make(); commands may run at the same time.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gda/adapter/mlx5/capabilities.h"
#include "gda/adapter/mlx5/commands.h"
#include "plugin/base/status.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda::mlx5 {

// A name for the status byte of an answer: "bad parameter".  Never null.
const char* status_text(unsigned status);
// What to do about it, beginning with "; ", or empty.
const char* status_remedy(unsigned status);

class Adapter;

// Destroys what the adapter made; what cannot be destroyed is named and left.
struct Destroyer {
  const Adapter* adapter = nullptr;
  void operator()(mlx5dv_devx_obj* object) const;
  void operator()(mlx5dv_devx_umem* umem) const;
  void operator()(mlx5dv_devx_uar* page) const;
};
template <class T>
using Handle = std::unique_ptr<T, Destroyer>;

class Adapter {
 public:
  // Asks the adapter for its capabilities.  Both tables are of one fabric and outlive it, as the
  // rail's adapter does.  Logs what is wrong.
  static Result<std::unique_ptr<Adapter>> make(const Verbs& verbs, const Mlx5& mlx5,
                                               const Rail& rail);

  const Verbs& verbs() const { return verbs_; }
  const Mlx5& mlx5() const { return mlx5_; }
  const Rail& rail() const { return rail_; }
  const char* name() const { return rail_.port.port->name.c_str(); }
  ibv_context* context() const { return rail_.port.adapter->context; }
  ibv_pd* pd() const { return rail_.port.adapter->pd; }
  std::uint32_t pd_number() const { return pd_number_; }
  std::uint32_t event_queue() const { return event_queue_; }
  const Capabilities& capabilities() const { return capabilities_; }

  struct Made {
    Handle<mlx5dv_devx_obj> object;
    std::uint32_t number = 0;
  };
  // `what` for the message, as "completion queue of the queue to rank 3 (host7)".
  Result<Made> create(const Command& command, const std::string& what) const;
  Status modify(mlx5dv_devx_obj* object, const Command& command, const std::string& what) const;
  Result<std::vector<std::uint8_t>> query(mlx5dv_devx_obj* object, const Command& command,
                                          std::size_t bytes, const std::string& what) const;

 private:
  Adapter(const Verbs& verbs, const Mlx5& mlx5, const Rail& rail)
      : verbs_(verbs), mlx5_(mlx5), rail_(rail) {}
  Status look();
  Status try_memory();
  Status ask(CapabilityKind kind, const char* what);
  Status refused(int error, std::span<const std::uint8_t> answer, const std::string& what) const;

  const Verbs& verbs_;
  const Mlx5& mlx5_;
  const Rail rail_;
  Capabilities capabilities_;
  std::uint32_t pd_number_ = 0, event_queue_ = 0;
};

}  // namespace twinpath::gda::mlx5
