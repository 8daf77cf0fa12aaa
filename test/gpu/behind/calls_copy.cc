// Copies and memset.  "Large" ones are of memory that the all-reduce does not use, larger than the
// driver stages at once; the others read its result.
#include <cstring>
#include <memory>
#include <vector>

#include "test/gpu/behind/calls.h"
#include "test/gpu/behind/gpu.h"
#include "test/gpu/behind/kernels.h"

namespace twinpath::behind {
namespace {

constexpr std::size_t kLargeBytes = std::size_t{16} << 20;

// Ordinary memory, or pinned.
struct HostBuffer {
  HostBuffer(std::size_t bytes, bool pinned) {
    if (pinned) {
      pinned_memory = std::make_unique<PinnedMemory>(bytes);
      data = pinned_memory->data<std::byte>();
    } else {
      pageable.resize(bytes);
      data = pageable.data();
    }
  }
  std::unique_ptr<PinnedMemory> pinned_memory;
  std::vector<std::byte> pageable;
  std::byte* data = nullptr;
};

std::uint64_t wrong_sums(const std::byte* bytes, std::size_t size, int round, int ranks) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < size / sizeof(float); ++i) {
    float value;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    if (!(value == expected(i, round, ranks))) ++wrong;
  }
  return wrong;
}

std::uint64_t count_other_than(const std::byte* bytes, std::size_t size, int value) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < size; ++i) wrong += bytes[i] != static_cast<std::byte>(value) ? 1 : 0;
  return wrong;
}

int byte_of(int round) { return round % 251 + 1; }

// The sums, to the host; `synchronous` by cudaMemcpy, over the default stream.
Action copy_sums(const Place& place, bool pinned, bool synchronous) {
  auto host = std::make_shared<HostBuffer>(place.bytes, pinned);
  return {[=](int) {
            if (synchronous) {
              check(cudaMemcpy(host->data, place.sums, place.bytes, cudaMemcpyDeviceToHost),
                    "cudaMemcpy to the host");
            } else {
              check(cudaMemcpyAsync(host->data, place.sums, place.bytes, cudaMemcpyDeviceToHost,
                                    place.stream),
                    "cudaMemcpyAsync to the host");
            }
          },
          [=](int round) { return wrong_sums(host->data, place.bytes, round, place.ranks); }};
}

// Memory of its own, to the host or to the GPU and back when the round is over.
Action copy_large(const Place& place, bool pinned, bool to_gpu) {
  auto host = std::make_shared<HostBuffer>(kLargeBytes, pinned);
  auto device = std::make_shared<DeviceMemory>(kLargeBytes);
  check(cudaMemset(device->data(), 0x5A, kLargeBytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (!to_gpu) {
    return {[=](int) {
              check(cudaMemcpyAsync(host->data, device->data(), kLargeBytes, cudaMemcpyDeviceToHost,
                                    place.stream),
                    "cudaMemcpyAsync to the host");
            },
            [=](int) {
              const std::uint64_t wrong = count_other_than(host->data, kLargeBytes, 0x5A);
              std::memset(host->data, 0, kLargeBytes);
              return wrong;
            }};
  }
  return {[=](int round) {
            std::memset(host->data, byte_of(round), kLargeBytes);
            check(cudaMemcpyAsync(device->data(), host->data, kLargeBytes, cudaMemcpyHostToDevice,
                                  place.stream),
                  "cudaMemcpyAsync to the GPU");
          },
          [=](int round) {
            std::memset(host->data, 0, kLargeBytes);
            check(cudaMemcpy(host->data, device->data(), kLargeBytes, cudaMemcpyDeviceToHost),
                  "cudaMemcpy of what was copied");
            return count_other_than(host->data, kLargeBytes, byte_of(round));
          }};
}

// Eight bytes from the program's stack, as a scalar is handed to the GPU.
Action copy_word(const Place& place) {
  auto device = std::make_shared<DeviceMemory>(sizeof(std::uint64_t));
  return {[=](int round) {
            const std::uint64_t word = 0x100000001ULL * static_cast<unsigned>(round);
            check(cudaMemcpyAsync(device->data(), &word, sizeof word, cudaMemcpyHostToDevice,
                                  place.stream),
                  "cudaMemcpyAsync of a word");
          },
          [=](int round) -> std::uint64_t {
            std::uint64_t word = ~0ULL;
            check(cudaMemcpy(&word, device->data(), sizeof word, cudaMemcpyDeviceToHost),
                  "cudaMemcpy of the word");
            return word == 0x100000001ULL * static_cast<unsigned>(round) ? 0 : 1;
          }};
}

Action copy_within(const Place& place) {
  auto copy = std::make_shared<DeviceMemory>(place.bytes);
  return {[=](int) {
            check(cudaMemcpyAsync(copy->data(), place.sums, place.bytes, cudaMemcpyDeviceToDevice,
                                  place.stream),
                  "cudaMemcpyAsync within the GPU");
          },
          [=](int round) {
            std::vector<std::byte> host(place.bytes);
            check(cudaMemcpy(host.data(), copy->data(), place.bytes, cudaMemcpyDeviceToHost),
                  "cudaMemcpy of the copy");
            return wrong_sums(host.data(), place.bytes, round, place.ranks);
          }};
}

Action copy_to_peer(const Place& place) {
  if (place.gpus < 2) throw Skipped("this process sees one GPU only");
  const int other = (place.device + 1) % place.gpus;
  check(cudaSetDevice(other), "cudaSetDevice");
  auto copy = std::make_shared<DeviceMemory>(place.bytes);
  check(cudaSetDevice(place.device), "cudaSetDevice");
  return {[=](int) {
            check(cudaMemcpyPeerAsync(copy->data(), other, place.sums, place.device, place.bytes,
                                      place.stream),
                  "cudaMemcpyPeerAsync");
          },
          [=](int round) {
            std::vector<std::byte> host(place.bytes);
            check(cudaMemcpy(host.data(), copy->data(), place.bytes, cudaMemcpyDeviceToHost),
                  "cudaMemcpy of the copy");
            return wrong_sums(host.data(), place.bytes, round, place.ranks);
          }};
}

Action set_memory(const Place& place, bool synchronous) {
  auto device = std::make_shared<DeviceMemory>(kLargeBytes);
  return {[=](int round) {
            check(synchronous
                      ? cudaMemset(device->data(), byte_of(round), kLargeBytes)
                      : cudaMemsetAsync(device->data(), byte_of(round), kLargeBytes, place.stream),
                  "cudaMemset");
          },
          [=](int round) {
            std::vector<std::byte> host(kLargeBytes);
            check(cudaMemcpy(host.data(), device->data(), kLargeBytes, cudaMemcpyDeviceToHost),
                  "cudaMemcpy of the memory set");
            return count_other_than(host.data(), kLargeBytes, byte_of(round));
          }};
}

constexpr Call kCopyCalls[] = {
    {"d2h-pageable", "cudaMemcpyAsync of the sums to ordinary memory (.item(), .cpu())",
     [](const Place& p) { return copy_sums(p, false, false); }},
    {"d2h-sync", "cudaMemcpy of the sums to ordinary memory, over the default stream",
     [](const Place& p) { return copy_sums(p, false, true); }},
    {"d2h-pageable-large", "cudaMemcpyAsync of 16 MiB to ordinary memory",
     [](const Place& p) { return copy_large(p, false, false); }},
    {"h2d-pageable", "cudaMemcpyAsync of a word of the stack to the GPU", copy_word},
    {"h2d-pageable-large", "cudaMemcpyAsync of 16 MiB of ordinary memory to the GPU",
     [](const Place& p) { return copy_large(p, false, true); }},
    {"d2h-pinned", "cudaMemcpyAsync of the sums to pinned memory",
     [](const Place& p) { return copy_sums(p, true, false); }},
    {"d2h-pinned-large", "cudaMemcpyAsync of 16 MiB to pinned memory",
     [](const Place& p) { return copy_large(p, true, false); }},
    {"h2d-pinned-large", "cudaMemcpyAsync of 16 MiB of pinned memory to the GPU",
     [](const Place& p) { return copy_large(p, true, true); }},
    {"d2d", "cudaMemcpyAsync of the sums within the GPU", copy_within},
    {"peer", "cudaMemcpyPeerAsync of the sums to the next GPU", copy_to_peer},
    {"memset", "cudaMemset of 16 MiB, over the default stream",
     [](const Place& p) { return set_memory(p, true); }},
    {"memset-async", "cudaMemsetAsync of 16 MiB, on the stream",
     [](const Place& p) { return set_memory(p, false); }},
};

}  // namespace

std::span<const Call> copy_calls() { return kCopyCalls; }

}  // namespace twinpath::behind
