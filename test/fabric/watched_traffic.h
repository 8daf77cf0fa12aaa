#pragma once
// Traffic of which every byte is known, over one connection whose ends may be in two threads: what
// arrives must be what was sent, once, and nothing may be written to a buffer that was given back.
// What was received is painted over, rests, and must still be paint when it is offered again.
//
// Both ends work out each group from its number (group_of).  What goes wrong is kept as text.
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/fabric/fake_gpu.h"
#include "test/fabric/fault_plan.h"
#include "test/fabric/world.h"

namespace twinpath::test {

// Bytes that look like nothing else, and as many of paint.
class Noise {
 public:
  explicit Noise(std::size_t most) : bytes_(most + kOffsets), paint_(most + kMargin, kPaint) {
    std::mt19937_64 random(most);
    for (std::size_t i = 0; i + 8 <= bytes_.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes_.data() + i, &word, 8);
    }
  }
  const std::uint8_t* of(std::uint64_t message) const {
    return bytes_.data() + (message + 1) * 2654435761u % kOffsets;
  }
  bool is_paint(const std::uint8_t* at, std::size_t n) const {
    return std::memcmp(at, paint_.data(), n) == 0;
  }
  static constexpr std::uint8_t kPaint = 0xc5;
  static constexpr std::size_t kMargin = 64;

 private:
  static constexpr std::size_t kOffsets = 65536;
  std::vector<std::uint8_t> bytes_, paint_;
};

struct Group {
  int members = 1;
  bool optional = false;
  std::array<std::size_t, kMaxRecvs> bytes{};
};
inline Group group_of(const FaultPlan& plan, std::uint64_t number) {
  std::uint64_t state = plan.seed * 0x9e3779b97f4a7c15u + number * 0xd1b54a32d192ed03u;
  const auto below = [&](std::size_t n) {
    state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u + 1;
    return static_cast<std::size_t>(state >> 33) % n;
  };
  Group g;
  g.members = 1 + static_cast<int>(below(static_cast<std::size_t>(plan.most_in_group)));
  g.optional = plan.optional_one_in != 0 && g.members == 1 &&
               below(static_cast<std::size_t>(plan.optional_one_in)) == 0;
  // Some have nothing for parcels.
  const std::size_t from = number % 4 == 0 ? FaultPlan::kParcelSizes : 0;
  for (int i = 0; i < g.members; ++i)
    g.bytes[static_cast<std::size_t>(i)] = plan.sizes[from + below(plan.sizes.size() - from)];
  return g;
}

// Shared by the ends.
struct Course {
  explicit Course(const FaultPlan& p) : plan(p), noise(p.most_bytes()) {}
  const FaultPlan& plan;
  const Noise noise;
  std::atomic<std::uint64_t> groups{~std::uint64_t{0}};  // to go over the connection
  std::atomic<std::uint64_t> offered{0}, received{0};
  // Groups whose sends are done, for the receiver of what has no completion.
  std::array<std::atomic<std::uint64_t>, 64> sent{};
};

// What memory an end uses.
struct WatchedMemory {
  MemoryType type = MemoryType::host;
  std::function<void(void*, std::size_t)> own, disown;  // of a GPU
};

// Places for groups, a registration each.
class WatchedPlaces {
 public:
  WatchedPlaces(Comm& comm, const Course& course, WatchedMemory memory)
      : memory_(std::move(memory)),
        stride_((course.plan.most_bytes() + Noise::kMargin + 63) / 64 * 64),
        places_(static_cast<std::size_t>(course.plan.window + course.plan.rest)) {
    for (Place& p : places_) {
      p.make(stride_ * static_cast<std::size_t>(course.plan.most_in_group));
      if (memory_.own) memory_.own(p.bytes.data(), p.bytes.size());
      auto made = memory_.type == MemoryType::cuda
                      ? register_gpu_memory(comm, p.bytes.data(), p.bytes.size())
                      : comm.register_memory(p.bytes.data(), p.bytes.size(), memory_.type, 0, -1);
      if (!made) throw std::runtime_error("a place cannot be registered");
      p.memory = *made;
    }
  }
  // The registrations go with the comm.
  ~WatchedPlaces() {
    for (Place& p : places_)
      if (memory_.disown) memory_.disown(p.bytes.data(), p.bytes.size());
  }
  WatchedPlaces(const WatchedPlaces&) = delete;
  WatchedPlaces& operator=(const WatchedPlaces&) = delete;
  std::size_t count() const { return places_.size(); }
  std::uint8_t* at(std::uint64_t group, int member) {
    return place(group).bytes.data() + stride_ * static_cast<std::size_t>(member);
  }
  Memory* memory(std::uint64_t group) { return place(group).memory; }

 private:
  // Whole pages: those of a GPU are no part of the host's.
  struct Place {
    void make(std::size_t n) {
      storage.assign(n + 2 * kPage, Noise::kPaint);
      const auto at = reinterpret_cast<std::uintptr_t>(storage.data());
      bytes =
          std::span(storage).subspan((kPage - at % kPage) % kPage, (n + kPage - 1) / kPage * kPage);
    }
    std::vector<std::uint8_t> storage;
    std::span<std::uint8_t> bytes;
    Memory* memory = nullptr;
  };
  static constexpr std::size_t kPage = 4096;
  Place& place(std::uint64_t group) { return places_[group % places_.size()]; }
  const WatchedMemory memory_;
  const std::size_t stride_;
  std::vector<Place> places_;
};

}  // namespace twinpath::test
