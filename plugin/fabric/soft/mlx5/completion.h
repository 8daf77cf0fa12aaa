#pragma once
// Completion queue entries, as the device writes them.
#include <array>
#include <cstdint>
#include <span>

namespace twinpath::soft::mlx5 {

inline constexpr std::size_t kEntryBytes = 64;  // of one; with 128 it is the second half

enum class CompletionKind : std::uint8_t {
  requester = 0,
  write_immediate = 1,
  send = 2,
  send_immediate = 3,
  resized = 5,  // the next is in the queue's new memory
  requester_error = 13,
  responder_error = 14,
};

// What went wrong, as the device numbers it (the syndrome of an error entry).
enum class Syndrome : std::uint8_t {
  none = 0,
  local_length = 0x01,
  local_operation = 0x02,
  local_protection = 0x04,
  flushed = 0x05,
  bad_response = 0x10,
  local_access = 0x11,
  remote_invalid_request = 0x12,
  remote_access = 0x13,
  remote_operation = 0x14,
  transport_retry = 0x15,
  receiver_not_ready = 0x16,
  remote_aborted = 0x22,
};

// Of a datagram: where it came from.
struct Sender {
  std::uint32_t qpn = 0;
  std::uint16_t lid = 0;
  std::uint8_t service_level = 0, path_bits = 0;
  bool routed = false;
};

struct Completion {
  CompletionKind kind = CompletionKind::requester;
  std::uint32_t qpn = 0;
  std::uint8_t opcode = 0;       // of the send entry
  std::uint16_t index = 0;       // of the entry in its queue
  std::uint32_t bytes = 0;       // received, or read
  std::uint32_t immediate = 0;   // as it came; of a datagram without, the partition's key
  std::uint32_t user_index = 0;  // of the queue pair
  Syndrome syndrome = Syndrome::none;
  bool solicited = false;  // the sender asks for an event
  std::uint64_t time = 0;  // of the device's clock; errors have none
  Sender sender{};

  bool error() const {
    return kind == CompletionKind::requester_error || kind == CompletionKind::responder_error;
  }
};

// The entry's bytes for place `position` (counted from the queue's beginning, without end) of a
// queue of 2^`log_entries` entries: the lowest bit of the last byte, which a reader looks at first,
// tells whether the lap is odd.
std::array<std::uint8_t, kEntryBytes> completion_bytes(const Completion& completion,
                                                       std::uint64_t position,
                                                       unsigned log_entries);

// What an entry has that nobody has written: programs fill their queues with it.
inline constexpr std::uint8_t kUnwrittenOwner = 0xf1;

}  // namespace twinpath::soft::mlx5
