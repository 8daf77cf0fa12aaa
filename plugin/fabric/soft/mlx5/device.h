#pragma once
// The model of an mlx5 device's control half, as one opened context sees it: objects, and the
// commands that make, change, ask and destroy them.  Commands are decoded by layout.h and checked
// as far as a wrong one can be told from the bytes; what a real device refuses beyond that is not
// known here.
//
// What stands in the queues is carried out by whoever is given as `queues`.
//
// Threads: any; one lock, held while a GID is looked up.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>

#include "plugin/fabric/soft/mlx5/capabilities.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "plugin/fabric/soft/mlx5/objects.h"
#include "plugin/fabric/soft/mlx5/opcode.h"
#include "plugin/fabric/soft/mlx5/queues.h"
#include "plugin/fabric/soft/mlx5/refusal.h"

namespace twinpath::soft::mlx5 {

// Memory that the device may reach: from `address`, in pages of `page_bytes`.
struct Umem {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t page_bytes = 4096;
};

class Device {
 public:
  // False when the port has no such entry.
  using GidLookup =
      std::function<bool(unsigned port, unsigned index, std::array<std::uint8_t, 16>& gid)>;

  // `queues` (null: nobody) lives as long as the device.  `numbers`: the last number that an object
  // got, of all devices of the process.  Numbers have 24 bits and are not 0, because programs take
  // 0 for none.
  Device(const DeviceFacts& facts, GidLookup gids, std::atomic<std::uint32_t>& numbers,
         Queues* queues = nullptr);

  const Variant& variant() const { return facts_.variant; }
  // Whether completions may be told by it.
  bool has_event_queue(std::uint64_t eqn) const {
    return eqn >= kFirstEventQueue && eqn < kFirstEventQueue + facts_.completion_vectors;
  }

  // --- what comes by other ways than a command
  std::uint32_t add_uar();  // stays as long as the context
  std::uint32_t add_umem(const Umem& umem);
  // Of verbs: it has its number from elsewhere, and stays known.
  void add_verbs_object(Name name);

  // --- commands.  Both at least 16 bytes; all of `out` is written: status, syndrome, and the
  // answer.
  Refusal execute(std::span<const std::uint8_t> in, std::span<std::uint8_t> out);
  // DESTROY_CQ, DESTROY_QP, and the end of a umem.
  Refusal remove(Name name);

 private:
  using Bytes = std::span<const std::uint8_t>;
  using Answer = std::span<std::uint8_t>;
  struct QueuePair {
    State state = State::reset;
    // As CREATE_QP and the transitions left it, at its place in a command.
    std::array<std::uint8_t, qp::kBytes> context{};
  };

  Refusal dispatch(Bytes in, Answer out);
  Refusal query_capabilities(Bytes in, Answer out) const;
  Refusal query_roce_address(Bytes in, Answer out) const;
  Refusal query_vport(Bytes in, Answer out) const;
  Refusal create_cq(Bytes in, Answer out);
  Refusal resize_cq(Bytes in);
  // queue_pairs.cc
  Refusal create_qp(Bytes in, Answer out);
  Refusal check_receive_side(Bytes in) const;
  Refusal check_features(Bytes in) const;
  Refusal modify_qp(Opcode opcode, Bytes in);
  Refusal query_qp(Bytes in, Answer out) const;
  Refusal check_init(Bytes in) const;
  Refusal check_address(Bytes in) const;
  Refusal check_ready_to_receive(const QueuePair& qp, Bytes in) const;

  // Whether `bytes` at `offset` of the umem are a queue, or a doorbell record.
  Refusal check_queue(std::uint32_t umem, std::uint64_t offset, std::uint64_t bytes) const;
  Refusal check_record(std::uint32_t umem, std::uint64_t offset) const;
  // Of a place that was checked.
  std::uint64_t address(std::uint32_t umem, std::uint64_t offset) const;
  std::uint32_t next_number();

  const DeviceFacts facts_;
  const GidLookup gids_;
  std::atomic<std::uint32_t>& numbers_;
  Queues* const queues_;
  mutable std::mutex lock_;
  Objects objects_;
  std::map<std::uint32_t, Umem> umems_;
  std::map<std::uint32_t, Name> completion_memories_;  // umems, of completion queues
  std::map<std::uint32_t, QueuePair> queue_pairs_;
};

}  // namespace twinpath::soft::mlx5
