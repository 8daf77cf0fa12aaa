#pragma once
// What stands in a send queue: work queue entries, read from the memory where programs write them.
// Bytes that programs leave as they happen to be (the signature, reserved words, a compare value of
// an add) are never looked at.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plugin/fabric/soft/mlx5/queues.h"

namespace twinpath::soft::mlx5 {

inline constexpr std::size_t kBlockBytes = 64;    // entries begin at blocks of so many
inline constexpr std::size_t kSegmentBytes = 16;  // and consist of segments of so many

enum class Operation : std::uint8_t {
  nop = 0x00,
  write = 0x08,
  write_immediate = 0x09,
  send = 0x0a,
  send_immediate = 0x0b,
  wait = 0x0f,
  read = 0x10,
  compare_swap = 0x11,
  fetch_add = 0x12,
  masked_compare_swap = 0x14,
  masked_fetch_add = 0x15,
  dump = 0x23,
  change_key = 0x25,  // UMR
};

// A piece of local memory.
struct Piece {
  std::uint64_t address;
  std::uint32_t bytes;
  std::uint32_t key;
};

// Where a datagram goes.
struct DatagramAddress {
  std::uint32_t qkey = 0, qpn = 0;
  std::uint16_t lid = 0;
  std::uint8_t service_level = 0, path_bits = 0;
  bool routed = false;  // what follows is a header in front (GRH)
  std::uint8_t gid_index = 0, hop_limit = 0, traffic_class = 0;
  std::uint32_t flow_label = 0;
  std::array<std::uint8_t, 16> gid{};
};

struct Work {
  Operation operation = Operation::nop;
  std::uint8_t modifier = 0;  // of masked atomics: the size of the operand
  std::uint16_t index = 0;    // as the program numbered it
  unsigned blocks = 1;        // that it takes in the queue
  bool completion = false;    // a completion in any case, not only after an error
  bool solicited = false;
  bool fenced = false;          // after reads and atomics under way
  std::uint32_t immediate = 0;  // as it stands there
  std::uint64_t remote_address = 0;
  std::uint32_t remote_key = 0;
  std::vector<Piece> pieces;
  std::vector<std::uint8_t> inline_data;
  std::uint64_t add_or_swap = 0, compare = 0, add_or_swap_mask = 0, compare_mask = 0;
  std::uint32_t wait_cqn = 0, wait_index = 0;
  DatagramAddress to;

  // Of masked atomics.  The modifier's low bits are the size's logarithm less 2: 0 is 4 bytes, 1
  // is 8.
  std::uint32_t operand_bytes() const { return (modifier & 7) == 0 ? 4 : 8; }
  bool masked() const {
    return operation == Operation::masked_compare_swap || operation == Operation::masked_fetch_add;
  }
};

// Why an entry is not carried out; the queue pair goes to the error state.
enum class Defect {
  none,
  operation,   // there is no such operation, or the queue does not have it
  queue_pair,  // the number of another queue pair
  place,       // the index is not that of the place where it stands
  size,  // fewer segments than the operation has, more than an entry may have, or than written
  inline_length,  // more inline data than segments
};
const char* text_of(Defect defect);

// How many blocks the entry that begins with `first` takes, at most; its first 8 bytes are needed.
unsigned blocks_of(std::span<const std::uint8_t> first);

// Reads the entry in `bytes` (whole blocks, begun at the entry's) of queue pair `qpn`, expected at
// `index` of which 16 bits are told.  `work` is complete when there is no defect.  A change of a
// key is read by who knows keys: `inline_data` is then what follows the first segment.
Defect read_work(std::span<const std::uint8_t> bytes, std::uint32_t qpn, std::uint64_t index,
                 Service service, Work& work);

// A receive entry: pieces up to the first that ends the list, or the last that fits.
std::vector<Piece> read_receive(std::span<const std::uint8_t> bytes);

// The full index that a doorbell means: the smallest that is not before `known` and has `told` as
// its lowest `bits`.  None when it is more than `depth` ahead: then it is no doorbell of this
// queue.
std::optional<std::uint64_t> extend_index(std::uint64_t known, std::uint32_t told, unsigned bits,
                                          std::uint64_t depth);

}  // namespace twinpath::soft::mlx5
