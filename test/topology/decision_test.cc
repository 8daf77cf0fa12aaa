// The cases of the decision that a reader would look up, and what is said about them.
#include "topology/decide/decision.h"

#include <array>

#include "test/support/catch.h"
#include "test/topology/decision_facts.h"

namespace twinpath {
namespace {

using namespace test;

constexpr std::array kUses{Use{Pattern::latency, false}, Use{Pattern::bulk, false},
                           Use{Pattern::mixed, false},   Use{Pattern::latency, true},
                           Use{Pattern::bulk, true},     Use{Pattern::mixed, true}};

}  // namespace

TEST_CASE("the placements of the documentation give the documented modes") {
  struct Case {
    const char* what;
    Distance from;
    unsigned from_bits;
    Distance to;
    unsigned to_bits;
    Use use;
    const char* mode;
    const char* rules;  // issue, source, landing
    const char* need;
  };
  constexpr unsigned kAll = kBits - 1;
  constexpr unsigned kNoUar = kAll & ~kUar;
  constexpr unsigned kNoGdr = kAll & ~kGdr;
  constexpr unsigned kNoDevx = kAll & ~kDevx;
  constexpr unsigned kOldRoot = kAll & ~kRootGood;
  constexpr Use kNet{Pattern::bulk, false}, kGin{Pattern::latency, true},
      kGinBulk{Pattern::bulk, true};
  using enum Distance;
  const Case table[] = {
      {"PIX both, host", pix, kAll, pix, kAll, kNet, "PROXY-GDR", "I4 R2 W2", "NONE"},
      {"PIX both, GPU", pix, kAll, pix, kAll, kGin, "GDA", "I7 R2 W2", "NONE"},
      {"PXB both, GPU bulk", pxb, kAll, pxb, kAll, kGinBulk, "GDA", "I7 R2 W2", "NONE"},
      {"C2C both", c2c, kAll, c2c, kAll, kGin, "GDA", "I7 R2 W2", "NONE"},
      {"PHB both, small", phb, kAll, phb, kAll, kGin, "GDA", "I7 R3 W3", "NONE"},
      {"PHB both, bulk", phb, kAll, phb, kAll, kNet, "PROXY-STAGE", "I1 R3 W3", "READ_UNPROVEN"},
      {"PIX to PHB, good root", pix, kAll, phb, kAll, kNet, "PROXY-GDR", "I4 R2 W3", "NONE"},
      {"PIX to PHB, old root", pix, kAll, phb, kOldRoot, kNet, "PROXY-STAGE", "I1 R2 W4",
       "ROOT_UNPROVEN"},
      {"NODE to PIX", node, kAll, pix, kAll, kNet, "PROXY-STAGE", "I1 R3 W2", "READ_UNPROVEN"},
      {"SYS both, small", sys, kAll, sys, kAll, kGin, "GDA", "I7 R4 W5", "NONE"},
      {"SYS both, bulk", sys, kAll, sys, kAll, kNet, "PROXY-STAGE", "I1 R4 W5", "SOCKET_FAR"},
      {"no GDR at the sender", pix, kNoGdr, pix, kAll, kGin, "PROXY-STAGE", "I1 R1 W2", "GDR_NONE"},
      {"no GDR at the receiver", pix, kAll, pix, kNoGdr, kNet, "PROXY-STAGE", "I1 R2 W1",
       "GDR_NONE"},
      {"doorbell not mappable", pix, kNoUar, pix, kAll, kGin, "GDA-P", "I5 R2 W2", "UAR_PERM"},
      {"no DevX", pix, kNoDevx, pix, kAll, kGin, "PROXY-GDR", "I2 R2 W2", "DEVX_NONE"},
      {"the receiver's doorbell does not matter", pix, kAll, pix, kNoUar, kGin, "GDA", "I7 R2 W2",
       "NONE"},
  };
  for (const Case& c : table) {
    CAPTURE(c.what);
    const PlacementRecord from = make_record(facts(c.from, c.from_bits), {});
    const PlacementRecord to = make_record(facts(c.to, c.to_bits), {});
    const Direction d = decide(from, to, c.use).send;
    CHECK(name_of(d.mode) == c.mode);
    CHECK(std::string(name_of(d.issue_rule)) + " " + std::string(name_of(d.source.rule)) + " " +
              std::string(name_of(d.landing.rule)) ==
          c.rules);
    CHECK(code_of(d.need) == c.need);
  }
}

TEST_CASE("an old GPU or another vendor's adapter leaves the work to the CPU") {
  EndFacts f = facts(Distance::pix, kBits - 1);
  f.compute_capability = 60;
  f.nvlink = true;
  PlacementRecord p = make_record(f, {});
  Direction d = decide(p, p, {Pattern::latency, true}).send;
  CHECK(d.mode == Mode::proxy_gdr);
  CHECK(d.issue_rule == Rule::i3);
  CHECK(d.need == Reason::gpu_old);
  f = facts(Distance::pix, kBits - 1);
  f.mlx5 = false;
  p = make_record(f, {});
  d = decide(p, p, {Pattern::latency, true}).send;
  CHECK(d.mode == Mode::proxy_gdr);
  CHECK(d.issue_rule == Rule::i2);
  CHECK(d.need == Reason::uar_vendor);
}

TEST_CASE("the two directions of unlike ends may differ, and each is told") {
  const PlacementRecord near = make_record(facts(Distance::pix, kBits - 1), {});
  const PlacementRecord far = make_record(facts(Distance::phb, kBits - 1), {});
  const Decision d = decide(near, far, {Pattern::bulk, true});
  CHECK(d.send.mode == Mode::gda);
  CHECK(d.recv.mode == Mode::proxy_stage);
  CHECK_FALSE(d.recv.need_at_receiver);
  CHECK(decide(far, near, {Pattern::bulk, true}).recv == d.send);
}

TEST_CASE("queues lie where the adapter and the poller reach them") {
  constexpr unsigned kAll = kBits - 1;
  const auto queues = [](Distance pf, unsigned bits, std::optional<Distance> data_direct) {
    EndFacts f = facts(pf, bits);
    f.data_direct = data_direct;
    const PlacementRecord p = make_record(f, {});
    return decide(p, p, {Pattern::latency, true}).send.queues;
  };
  CHECK(queues(Distance::pix, kAll, {}) == QueuePlacement{true, true, true});
  CHECK(queues(Distance::pix, kAll & ~kUar, {}) == QueuePlacement{true, true, false});
  CHECK(queues(Distance::c2c, kAll, {}) == QueuePlacement{false, true, false});
  CHECK(queues(Distance::phb, kAll, {}) == QueuePlacement{false, true, false});
  CHECK(queues(Distance::unknown, kAll, {}) == QueuePlacement{false, true, false});
  // Data direct moves data only; the queues stay with the far physical function.
  CHECK(queues(Distance::node, kAll, Distance::pxb) == QueuePlacement{false, true, false});
  CHECK(queues(Distance::pix, kAll & ~kQueues, {}) == QueuePlacement{});
}

TEST_CASE("the lesser wish of two ends caps the mode; what cannot be had is said") {
  struct Case {
    ModeChoice a, b;
    unsigned bits;
    Distance distance;
    Use use;
    Mode mode;
    bool unmet, conflict;
  };
  constexpr unsigned kAll = kBits - 1;
  constexpr unsigned kNoUar = kAll & ~kUar;
  constexpr unsigned kNoGdr = kAll & ~kGdr;
  constexpr Use kGin{Pattern::latency, true}, kGinBulk{Pattern::bulk, true},
      kNet{Pattern::bulk, false};
  using enum ModeChoice;
  const Case table[] = {
      {automatic, automatic, kAll, Distance::pix, kGin, Mode::gda, false, false},
      {proxy, automatic, kAll, Distance::pix, kGin, Mode::proxy_gdr, false, false},
      {automatic, proxy, kAll, Distance::pix, kGin, Mode::proxy_gdr, false, false},
      {gda_cpu, automatic, kAll, Distance::pix, kGin, Mode::gda_cpu, false, false},
      {stage, automatic, kAll, Distance::pix, kNet, Mode::proxy_stage, false, false},
      {gda, proxy, kAll, Distance::pix, kGin, Mode::proxy_gdr, false, true},
      {gda, gda, kNoUar, Distance::pix, kGin, Mode::gda_cpu, true, false},
      {gda_cpu, gda_cpu, kNoUar, Distance::pix, kGin, Mode::gda_cpu, false, false},
      {gda, gda, kNoGdr, Distance::pix, kGin, Mode::proxy_stage, true, false},
      {gda, gda, kAll, Distance::sys, kGinBulk, Mode::gda, false, false},  // slow is as asked for
      {automatic, automatic, kAll, Distance::sys, kGinBulk, Mode::proxy_stage, false, false},
      {gda, gda, kAll, Distance::sys, kNet, Mode::proxy_stage, false, false},  // no GPU issues here
      {gda, gda, kAll, Distance::pix, kNet, Mode::proxy_gdr, false, false},
  };
  for (const Case& c : table) {
    const EndFacts f = facts(c.distance, c.bits);
    const PlacementRecord a = make_record(f, {{}, -1, c.a});
    const PlacementRecord b = make_record(f, {{}, -1, c.b});
    CAPTURE(static_cast<int>(c.a), static_cast<int>(c.b), c.bits);
    const Direction d = decide(a, b, c.use).send;
    CHECK(name_of(d.mode) == name_of(c.mode));
    CHECK(d.wish_unmet == c.unmet);
    CHECK(d.wish_conflict == c.conflict);
    CHECK(decide(b, a, c.use).recv == d);
    CHECK((d.issue_rule == Rule::u3) == (d.issue_reason == Reason::mode_set));
    if (d.issue_rule == Rule::u3) {
      CHECK(d.need == Reason::mode_set);
      const bool receivers = c.a == ModeChoice::automatic || (c.b != automatic && c.b < c.a);
      CHECK(d.need_at_receiver == receivers);
    }
  }
}

TEST_CASE("TWINPATH_MODE=stage stages both ends whatever they can") {
  const EndFacts f = facts(Distance::pix, kBits - 1);
  const PlacementRecord a = make_record(f, {{}, -1, ModeChoice::stage});
  const PlacementRecord b = make_record(f, {});
  for (const Use& use : kUses) {
    const Decision d = decide(a, b, use);
    for (const Direction& one : {d.send, d.recv}) {
      CHECK(one.mode == Mode::proxy_stage);
      CHECK(one.source.direct_max == 0);
      CHECK(one.landing.direct_max == 0);
      CHECK_FALSE(one.source.direct(1));
      CHECK_FALSE(one.flush);
    }
  }
}

TEST_CASE("records of any content are decided, and none claims what it cannot do") {
  const PlacementRecord nothing;
  const PlacementRecord good = make_record(facts(Distance::pix, kBits - 1), {});
  CHECK(decide(nothing, good, {}).send.mode == Mode::proxy_stage);
  CHECK(decide(good, nothing, {}).send.mode == Mode::proxy_stage);
  PlacementRecord liar = good;
  liar.capabilities = 0;
  const Direction d = decide(liar, good, {Pattern::latency, true}).send;
  CHECK(d.mode == Mode::proxy_stage);
  CHECK(d.source.direct_max == 0);
}

TEST_CASE("a plan's limit counts whole messages") {
  const EndPlan limited{65536, Rule::w4, Reason::root_unproven};
  CHECK(limited.direct(0));
  CHECK(limited.direct(65536));
  CHECK_FALSE(limited.direct(65537));
  const EndPlan never{};
  CHECK_FALSE(never.direct(0));
  const EndPlan always{kAnySize, Rule::w2, Reason::ok_pix};
  CHECK(always.direct(kAnySize));
}

TEST_CASE("the log line names both ends, both directions, and what a better mode lacks") {
  EndFacts f = facts(Distance::pix, (kBits - 1) & ~kUar);
  f.probes.uar.error = 800;
  const PlacementRecord here = make_record(f, {});
  const PlacementRecord there = make_record(facts(Distance::phb, kBits - 1), {});
  const EndNames a{"node01", "GPU0", "mlx5_0"}, b{"node07", "GPU3", "mlx5_4"};
  CHECK(summary(decide(here, there, {Pattern::latency, true}), here, there, a, b) ==
        "GPU0 mlx5_0 with node07 GPU3 mlx5_4: send GDA-P (I5 R2 W3), GDA lacks UAR_PERM at node01: "
        "GPU0 may not map the doorbell of mlx5_0 (error 800); receive GDA (I7 R3 W2)");
  CHECK(
      summary(decide(here, there, {}), here, there, a, b) ==
      "GPU0 mlx5_0 with node07 GPU3 mlx5_4: send PROXY-GDR (I4 R2 W3); receive PROXY-STAGE (I1 R3 "
      "W2), PROXY-GDR lacks READ_UNPROVEN at node07: PHB: reads through a root complex often run "
      "at half rate");
}

TEST_CASE("the explanation has a line for every part, with rule, code, sentence and remedy") {
  EndFacts f = facts(Distance::node, (kBits - 1) & ~(kUar | kAtomics | kOrdered));
  f.data_direct = Distance::pxb;
  f.data_direct_refused = true;
  f.probes.uar.error = 800;
  f.port_gbps = 400;
  f.pcie_gbs = 63;
  f.measured_read = 6.1;
  const PlacementRecord p = make_record(f, {{}, -1, ModeChoice::gda});
  const EndNames a{"node01", "GPU0", "mlx5_0"}, b{"node07", "GPU3", "mlx5_4"};
  const Direction d = decide(p, p, {Pattern::latency, true}).send;
  const std::vector<Explanation> lines = explain(d, p, p, a, b);
  std::string parts;
  for (const Explanation& e : lines) {
    parts += e.part + " " + e.code + "; ";
    CHECK_FALSE(e.sentence.empty());
    CHECK((e.where == "node01" || e.where == "node07"));
  }
  CHECK(parts ==
        "source READ_SLOW; source DD_REFUSED; landing OK_ROOT; landing DD_REFUSED; issue UAR_PERM; "
        "queues NONE; flush FLUSH_NEEDED; signals ATOMIC_EMUL; wish MODE_IMPOSSIBLE; next "
        "UAR_PERM; ");
  CHECK(lines[0].sentence == "NODE: reads were measured at 6.1 of 50.0 GB/s");
  CHECK(lines[0].result == "direct");
  CHECK(lines[0].rule == "R3");
  CHECK(lines[4].result == "GPU writes, CPU rings");
  CHECK(lines[5].result == "SQ host, CQ GPU, doorbell record host");
  CHECK(lines[8].sentence == "gda was asked for and cannot be had");
  CHECK_FALSE(lines[9].remedy.empty());
  Direction limited = d;
  for (const auto& [bytes, told] :
       {std::pair{1023u, "1023 B"}, {1024u, "1 KiB"}, {65536u, "64 KiB"}}) {
    limited.landing.direct_max = bytes;
    CHECK(explain(limited, p, p, a, b)[2].result ==
          "direct up to " + std::string(told) + ", else staged");
  }
}

}  // namespace twinpath
