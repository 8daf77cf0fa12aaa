// Bytes from the wire before the peer is trusted: frame header and every frame body.
// What decodes must also survive being encoded and decoded again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "proxy/wire/failover.h"
#include "proxy/wire/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  const std::span<const std::uint8_t> bytes(data, size);
  if (size >= kFrameHeaderBytes) (void)decode_header(bytes.first<kFrameHeaderBytes>());
  std::string why;
  Hello hello;
  if (decode_hello(bytes, hello, why)) {
    if (hello.rails.empty() || hello.rails.size() > kMaxRails) std::abort();
    if (hello.standby < 0 || hello.ends().regular < 1) std::abort();
    Hello again;
    if (!decode_hello(encode_hello(hello), again, why)) std::abort();
    if (again.rails.size() != hello.rails.size() || again.device != hello.device) std::abort();
  } else if (why.empty()) {
    std::abort();
  }
  why.clear();
  Queues queues;
  if (decode_queues(bytes, queues, why)) {
    if (queues.queues.empty() || queues.queues.size() > kMaxQps) std::abort();
    Queues again;
    if (!decode_queues(encode_queues(queues), again, why)) std::abort();
    if (again.queues.size() != queues.queues.size()) std::abort();
    if (!queues.shares.empty() && queues.shares.size() != queues.queues.size()) std::abort();
    if (again.shares.size() != queues.shares.size()) std::abort();
  } else if (why.empty()) {
    std::abort();
  }
  // And what a known peer says later.
  FencedNote fence;
  if (decode_failover(bytes, fence)) {
    if (fence.memory.size() > kMostKeyRanges || fence.rails.size() > kMaxRails) std::abort();
    const auto frame = encode_failover(fence);
    FencedNote again;
    if (!decode_failover(std::span(frame).subspan(kFailoverHeader), again)) std::abort();
    if (again.memory.size() != fence.memory.size() || again.made != fence.made) std::abort();
  }
  StopNote stop;
  (void)decode_failover(bytes, stop);
  for (const char c : decode_refusal(bytes)) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f) std::abort();
  }
  return 0;
}
