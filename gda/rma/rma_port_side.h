#pragma once
// What a context has on one port: its memory registered there, and a queue pair for each of its
// queues.  Those to the own rank are joined to themselves.
//
// Threads: made and raised at setup; then under the context's lock, but for what port_pairs.h says.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/served/port_pairs.h"

namespace twinpath::gda::rma {

class Inbox;

class PortSide final : public PortPairs {
 public:
  struct Plan {
    std::vector<bool> used;  // by queue: its rank is spoken to
    std::uint8_t* memory = nullptr;
    std::size_t bytes = 0;
    std::uint32_t slots = 1;     // work requests of a queue, at most
    std::uint32_t receives = 0;  // of a queue pair
    std::uint32_t spare = 0;     // work requests, and receives, beside these
    QueueSettings queue;         // of which depths and rights are filled in here
  };
  static Result<std::unique_ptr<PortSide>> make(const TeamCore& team, const Where& where,
                                                const Plan& plan);
  ~PortSide() { stop_all(); }

  // What a queue pair holds; it holds as many spare ones more.
  std::uint32_t slots() const { return slots_; }
  // Who gives receives to queue pairs made anew, over this port.
  void serve(const Inbox& inbox, int port) {
    inbox_ = &inbox;
    port_ = port;
  }
  Status give_receives(std::size_t queue, ibv_qp* qp) const override;
  // Nothing more is read from or written to memory here.
  void stop_all();

 private:
  explicit PortSide(const Where& where) : PortPairs(where) {}
  Status make_pairs(const TeamCore& team, const Plan& plan);

  std::uint32_t slots_ = 0;
  const Inbox* inbox_ = nullptr;
  int port_ = 0;
};

}  // namespace twinpath::gda::rma
