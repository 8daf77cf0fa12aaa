// See decode.h.
#include "gda/served/front/decode.h"

#include <cstddef>

namespace twinpath::gda {
namespace {

constexpr std::uint64_t kAtomicBytes = 8;

// One WQE being taken apart.  The local side is checked before the remote one, as an adapter does.
struct WqeReader {
  const WqeWords& words;
  const KeyTable& keys;
  const int peer;

  // Data segment at word `at`: {count, lkey, offset}.
  Syndrome local(std::size_t at, std::uint32_t right, Operation& operation) const {
    const std::uint32_t count = first_dword(words[at]);
    if ((count & kInlineFlag) != 0) return Syndrome::local_qp_operation;
    Located where;
    if (!keys.local(second_dword(words[at]), swap64(words[at + 1]), count, right, where))
      return Syndrome::local_protection;
    operation.bytes = count;
    operation.local = where.address;
    operation.lkey = where.fabric_key;
    operation.second_lkey = where.second_key;
    return Syndrome::none;
  }

  // Remote address segment, words 2 and 3: {offset, rkey, reserved}.
  Syndrome remote(std::uint64_t bytes, std::uint32_t right, Operation& operation) const {
    Located where;
    if (!keys.remote(first_dword(words[3]), peer, swap64(words[2]), bytes, right, where))
      return Syndrome::remote_access;
    operation.remote = where.address;
    operation.rkey = where.fabric_key;
    operation.second_rkey = where.second_key;
    return Syndrome::none;
  }

  Syndrome transfer(OperationKind kind, std::uint32_t local_right, std::uint32_t remote_right,
                    Operation& operation) const {
    operation.kind = kind;
    const Syndrome error = local(4, local_right, operation);
    return error != Syndrome::none ? error : remote(operation.bytes, remote_right, operation);
  }

  Syndrome write_inline(std::uint32_t segments, Operation& operation) const {
    const std::uint32_t bytes = first_dword(words[4]) & ~kInlineFlag;
    if (bytes > kMaxInline || segments != (bytes > kInlineThreeSegments ? 4u : 3u))
      return Syndrome::local_qp_operation;
    operation.kind = OperationKind::write_inline;
    operation.bytes = bytes;
    for (std::size_t i = 0; i < bytes; ++i)
      operation.inline_data[i] = static_cast<std::uint8_t>(words[(36 + i) / 8] >> (36 + i) % 8 * 8);
    return remote(bytes, kRemoteWrite, operation);
  }

  Syndrome fetch_add(Operation& operation) const {
    operation.kind = OperationKind::fetch_add;
    if (first_dword(words[6]) != kAtomicBytes)
      return (first_dword(words[6]) & kInlineFlag) != 0 ? Syndrome::local_qp_operation
                                                        : Syndrome::local_length;
    if (const Syndrome error = local(6, kLocalWrite, operation); error != Syndrome::none)
      return error;
    if (swap64(words[2]) % kAtomicBytes != 0) return Syndrome::remote_invalid_request;
    operation.add = swap64(words[4]);
    operation.window = first_dword(words[3]);
    operation.offset = swap64(words[2]);
    return remote(kAtomicBytes, kRemoteAtomic, operation);
  }
};

// False also for opcodes that we do not execute.
bool segments_fit(Opcode opcode, std::uint32_t segments) {
  switch (opcode) {
    case Opcode::nop:
      return segments == 1;
    case Opcode::wait:
    case Opcode::dump:
      return segments == 2;
    case Opcode::read:
      return segments == 3;
    case Opcode::write:  // 4: inline only, checked there
      return segments == 3 || segments == 4;
    case Opcode::fetch_add:
      return segments == 4;
  }
  return false;
}

}  // namespace

Decoded decode(const WqeWords& words, std::uint64_t index, std::uint32_t qpn, const KeyTable& keys,
               int peer) {
  Decoded out;
  const std::uint32_t first = first_dword(words[0]);
  const std::uint32_t second = second_dword(words[0]);
  const std::uint32_t segments = second & 0xff;
  out.opcode = static_cast<std::uint8_t>(first);
  const auto opcode = static_cast<Opcode>(out.opcode);
  if (first >> 24 != 0 || (first >> 8 & 0xffff) != (index & 0xffff) || second >> 8 != qpn ||
      !segments_fit(opcode, segments)) {
    out.syndrome = Syndrome::local_qp_operation;
    return out;
  }

  const WqeReader reader{words, keys, peer};
  switch (opcode) {
    case Opcode::nop:
      break;
    case Opcode::write:
      if ((first_dword(words[4]) & kInlineFlag) != 0)
        out.syndrome = reader.write_inline(segments, out.operation);
      else if (segments != 3)  // two pieces of memory: NCCL has no such WQE
        out.syndrome = Syndrome::local_qp_operation;
      else
        out.syndrome =
            reader.transfer(OperationKind::write, kLocalRead, kRemoteWrite, out.operation);
      break;
    case Opcode::read:
      out.syndrome = reader.transfer(OperationKind::read, kLocalWrite, kRemoteRead, out.operation);
      break;
    case Opcode::fetch_add:
      out.syndrome = reader.fetch_add(out.operation);
      break;
    case Opcode::dump:
      out.syndrome = reader.local(2, kLocalRead, out.operation);
      out.operation.kind = OperationKind::dump;
      break;
    case Opcode::wait:
      out.wait = true;
      out.awaited = first_dword(words[3]);
      out.cqn = second_dword(words[3]);
      break;
  }
  return out;
}

}  // namespace twinpath::gda
