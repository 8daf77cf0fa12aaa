// The decision over its whole input space.
#include "topology/decide/decision.h"

#include <array>
#include <memory>

#include "test/support/catch.h"
#include "test/topology/decision_facts.h"

namespace twinpath {
namespace {

using namespace test;

using Records = std::array<std::array<PlacementRecord, kBits>, kDistances>;

// Every (distance, capabilities) of an end, under one wish.
std::unique_ptr<Records> all_records(ModeChoice wish) {
  auto out = std::make_unique<Records>();
  for (unsigned d = 0; d < kDistances; ++d) {
    for (unsigned bits = 0; bits < kBits; ++bits)
      (*out)[d][bits] = make_record(facts(static_cast<Distance>(d), bits), {{}, -1, wish});
  }
  return out;
}

constexpr std::array kAllUses{Use{Pattern::latency, false}, Use{Pattern::bulk, false},
                              Use{Pattern::mixed, false},   Use{Pattern::latency, true},
                              Use{Pattern::bulk, true},     Use{Pattern::mixed, true}};

// The remote end's capabilities that its side of a direction depends on; the rest are all there.
constexpr unsigned kRemoteFixed = kUar | kDevx | kAtomics | kQueues;
std::array<unsigned, 8> remote_bits() {
  std::array<unsigned, 8> out{};
  for (unsigned i = 0; i < 8; ++i)
    out[i] = kRemoteFixed | ((i & 1) != 0 ? kGdr : 0) | ((i & 2) != 0 ? kRootGood : 0) |
             ((i & 4) != 0 ? kOrdered : 0);
  return out;
}

// Calls fn(local distance, local bits, remote distance, remote bits, use) for every tuple.
template <class Fn>
std::size_t for_all(Fn fn) {
  std::size_t count = 0;
  for (unsigned dl = 0; dl < kDistances; ++dl)
    for (unsigned dr = 0; dr < kDistances; ++dr)
      for (unsigned bl = 0; bl < kBits; ++bl)
        for (const unsigned br : remote_bits())
          for (const Use& use : kAllUses) {
            fn(dl, bl, dr, br, use);
            ++count;
          }
  return count;
}

// The combination table once more, in the words of the document instead of rows.
Mode expected_mode(const PlacementRecord& from, const PlacementRecord& to, Use use) {
  const auto at_will = [&](std::uint8_t log2) {
    return use.pattern == Pattern::latency ? log2 != kNeverDirect : log2 == kAlwaysDirect;
  };
  if (!at_will(from.source.log2) || !at_will(to.land.log2)) return Mode::proxy_stage;
  if (!use.device_initiated || !from.can(kCanDevx)) return Mode::proxy_gdr;
  return from.can(kCanGpuRing) ? Mode::gda : Mode::gda_cpu;
}

std::string place(unsigned dl, unsigned bl, unsigned dr, unsigned br, Use use) {
  return std::string(name_of(static_cast<Distance>(dl))) + "/" + std::to_string(bl) + " -> " +
         std::string(name_of(static_cast<Distance>(dr))) + "/" + std::to_string(br) + " pattern " +
         std::to_string(static_cast<int>(use.pattern)) + (use.device_initiated ? " GPU" : " host");
}

// Empty, or what is wrong with one direction.
std::string flaw(const Direction& d, const PlacementRecord& from, const PlacementRecord& to,
                 Use use) {
  if (d.mode != expected_mode(from, to, use)) return "mode " + std::string(name_of(d.mode));
  if (d.source.reason == Reason::none || d.landing.reason == Reason::none ||
      d.issue_reason == Reason::none)
    return "a part has no reason";
  if (d.source.rule == Rule::none || d.landing.rule == Rule::none || d.issue_rule == Rule::none)
    return "a part has no rule";
  const Mode best = use.device_initiated ? Mode::gda : Mode::proxy_gdr;
  if ((d.need == Reason::none) != (d.mode == best)) return "what the next mode needs";
  if (d.need != Reason::none && d.next != static_cast<Mode>(static_cast<int>(d.mode) + 1))
    return "the next mode";
  const bool gpu_issued = d.mode >= Mode::gda_cpu;
  if (gpu_issued && (d.source.direct_max != kAnySize || d.landing.direct_max != kAnySize))
    return "a GPU that issues cannot stage";
  if (!gpu_issued && d.queues != QueuePlacement{}) return "queues for a CPU";
  if (d.queues.dbr_on_gpu && d.mode != Mode::gda) return "doorbell record of a CPU on the GPU";
  if (d.wish_unmet || d.wish_conflict) return "a wish that nobody had";
  return {};
}

}  // namespace

TEST_CASE("over the whole input space decisions are total, equal at both ends, and have reasons") {
  const auto records = all_records(ModeChoice::automatic);
  std::string wrong;
  std::size_t failures = 0;
  const auto fail = [&](const std::string& where, const std::string& what) {
    if (++failures == 1) wrong = where + ": " + what;
  };
  const std::size_t count = for_all([&](unsigned dl, unsigned bl, unsigned dr, unsigned br, Use u) {
    const PlacementRecord& a = (*records)[dl][bl];
    const PlacementRecord& b = (*records)[dr][br];
    const Decision here = decide(a, b, u);
    const Decision there = decide(b, a, u);
    if (here.send != there.recv || here.recv != there.send)
      fail(place(dl, bl, dr, br, u), "the ends disagree");
    if (decide(a, b, u) != here) fail(place(dl, bl, dr, br, u), "not deterministic");
    if (std::string f = flaw(here.send, a, b, u); !f.empty()) fail(place(dl, bl, dr, br, u), f);
    if (std::string f = flaw(here.recv, b, a, u); !f.empty())
      fail("receive " + place(dl, bl, dr, br, u), f);
  });
  CHECK(wrong == "");
  CHECK(failures == 0);
  CHECK(count == 9u * 9 * 128 * 8 * 6);
}

TEST_CASE("a capability more at either end never gives a lesser mode or limit") {
  for (const ModeChoice wish : {ModeChoice::automatic, ModeChoice::gda}) {
    const auto records = all_records(wish);
    std::string wrong;
    const auto lesser = [](const Direction& more, const Direction& less) {
      return more.mode < less.mode || more.source.direct_max < less.source.direct_max ||
             more.landing.direct_max < less.landing.direct_max ||
             (more.flush && !less.flush && more.landing.direct_max == less.landing.direct_max);
    };
    for_all([&](unsigned dl, unsigned bl, unsigned dr, unsigned br, Use u) {
      const Decision base = decide((*records)[dl][bl], (*records)[dr][br], u);
      for (unsigned bit = 1; bit < kBits; bit *= 2) {
        if ((bl & bit) == 0) {
          const Decision more = decide((*records)[dl][bl | bit], (*records)[dr][br], u);
          if (lesser(more.send, base.send) || lesser(more.recv, base.recv))
            wrong = place(dl, bl, dr, br, u) + " local bit " + std::to_string(bit);
        }
        if ((br & bit) == 0) {
          const Decision more = decide((*records)[dl][bl], (*records)[dr][br | bit], u);
          if (lesser(more.send, base.send) || lesser(more.recv, base.recv))
            wrong = place(dl, bl, dr, br, u) + " remote bit " + std::to_string(bit);
        }
      }
    });
    CHECK(wrong == "");
  }
}

TEST_CASE("a nearer pair never gets a lesser mode, unless what is farther hides itself") {
  // C2C and nearer are one class to the rules, and so on outwards.
  const auto records = all_records(ModeChoice::automatic);
  std::string wrong;
  for_all([&](unsigned dl, unsigned bl, unsigned dr, unsigned br, Use u) {
    if (dl == 0 || dl >= static_cast<unsigned>(Distance::unknown)) return;
    const Decision far = decide((*records)[dl][bl], (*records)[dr][br], u);
    const Decision near = decide((*records)[dl - 1][bl], (*records)[dr][br], u);
    if (near.send.mode < far.send.mode || near.recv.mode < far.recv.mode)
      wrong = place(dl, bl, dr, br, u);
  });
  CHECK(wrong == "");
}

}  // namespace twinpath
