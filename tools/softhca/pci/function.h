#pragma once
// The control half of the PCI function: what the kernel's driver asks of it by commands.
//
// Each command is checked against its layout first; one that there is not, or that sets a reserved
// bit, changes nothing.
//
// Threads: one at a time.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/fabric/soft/mlx5/device.h"
#include "plugin/fabric/soft/mlx5/objects.h"
#include "tools/softhca/pci/capabilities.h"
#include "tools/softhca/pci/data_path.h"
#include "tools/softhca/pci/event_queues.h"
#include "tools/softhca/pci/layouts.h"
#include "tools/softhca/pci/port.h"

namespace twinpath::softhca::pci {

// Doorbell pages lie behind the registers of the function (registers.h).
inline constexpr std::uint32_t kFirstDoorbellPage = 16;

struct Outcome {
  mlx5::Refusal refusal = mlx5::Refusal::none;
  std::uint32_t reserved_bit = 0;  // of Refusal::reserved
};

class Function {
 public:
  // All outlive it.  `data` null: queues are made, and nothing is carried out.
  Function(unsigned number, std::uint32_t doorbell_pages, const GuestMemory& memory,
           EventQueues& events, DataPath* data = nullptr);

  // Both at least 8 bytes; all of `out` is written: status, syndrome, and the answer.
  Outcome execute(Bytes in, Answer out);

  Port& port() { return port_; }
  // A driver asks when it takes the function.
  void offer(const Offers& offers) { offers_ = offers; }
  const Offers& offers() const { return offers_; }
  // Everything that was made is gone, and nobody is told.
  void reset();
  // Likewise, and the guest's pages are its own again: a driver whose function has failed takes
  // them back without asking.
  void fail();
  // Takes the link down or up, and says so.
  void set_link(bool up);
  // The subnet's manager has given the port another LID: likewise.
  void change_lid();
  std::size_t pages_held() const { return pages_.size(); }
  bool enabled() const { return enabled_; }

 private:
  void tell_of_port(PortChange change);
  mlx5::Refusal dispatch(mlx5::Opcode opcode, Bytes in, Answer out);
  mlx5::Refusal query(mlx5::Opcode opcode, Bytes in, Answer out);
  mlx5::Refusal change_group(mlx5::Opcode opcode, Bytes in);
  mlx5::Refusal manage_pages(Bytes in, Answer out);
  mlx5::Refusal make(mlx5::Opcode opcode, Bytes in, Answer out);
  mlx5::Refusal destroy(mlx5::Opcode opcode, Bytes in);
  mlx5::Refusal make_queue(mlx5::Kind kind, Bytes in, Answer out, std::uint32_t& number);
  struct QueueMemory;
  mlx5::Refusal map_queue(mlx5::Kind kind, std::span<std::uint8_t> command,
                          std::optional<QueueMemory>& memory);
  mlx5::Refusal resize_cq(Bytes in, Answer out);
  // shared_receives.cc
  mlx5::Refusal make_shared(mlx5::Opcode opcode, std::uint32_t number, Bytes in);
  mlx5::Refusal set_limit(mlx5::Opcode opcode, Bytes in);
  mlx5::Refusal query_shared(mlx5::Opcode opcode, Bytes in, Answer out);
  void let_go(mlx5::Name name);
  mlx5::Refusal make_umem(Bytes in, std::uint32_t& number);
  mlx5::Refusal make_numbered(mlx5::Kind kind, std::uint32_t number, Bytes in);
  std::uint32_t free_number(mlx5::Kind kind, std::uint32_t first, std::uint32_t end,
                            std::uint32_t many = 1);
  mlx5::Refusal choose(Bytes in);
  mlx5::Refusal make_doorbell_pages(std::uint32_t& number);
  mlx5::Refusal remove_doorbell_pages(std::uint32_t number);

  const unsigned number_;
  const std::uint32_t doorbell_pages_;
  const GuestMemory& memory_;
  EventQueues& events_;
  DataPath* const data_;
  Port port_;
  bool enabled_ = false;
  Offers offers_;
  unsigned log_doorbell_page_ = 0;    // as the driver has chosen it
  std::vector<std::uint64_t> pages_;  // of the guest's memory, given to the function
  mlx5::Objects objects_;
  std::map<mlx5::Kind, std::uint32_t> last_numbers_;
  // Queues are the device model's, which knows memory as programs register it: pages that a command
  // lists become such a memory.
  struct QueueMemory {
    std::uint32_t umem;
    GuestView view;
  };
  std::atomic<std::uint32_t> device_numbers_{0x100};
  std::unique_ptr<mlx5::Device> device_;
  std::uint32_t whole_memory_ = 0;  // umem
  std::map<mlx5::Name, QueueMemory> queue_memory_;
  struct SharedReceives {
    mlx5::Opcode made_by;
    std::vector<std::uint8_t> context;  // as the command had it
    std::uint32_t entries = 0;
    std::uint32_t limit = 0;  // as it was last told
  };
  std::map<std::uint32_t, SharedReceives> shared_receives_;
};

}  // namespace twinpath::softhca::pci
