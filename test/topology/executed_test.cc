// What this version does of a decision, which says what the hardware allows.
#include "test/support/catch.h"
#include "test/topology/decision_facts.h"
#include "topology/decide/decision.h"
#include "topology/decide/record_machine.h"

namespace twinpath {

using namespace test;

TEST_CASE("this version does of a decision what it has built, and never more than was decided") {
  constexpr unsigned kAll = kBits - 1;
  constexpr Use kNet{Pattern::bulk, false}, kGin{Pattern::latency, true};
  struct Case {
    const char* what;
    EndFacts facts;
    Use use;
    bool software;
    Mode decided;
    std::optional<Mode> runs;
    Reason reason;
  };
  EndFacts soft;
  soft.soft_queues = soft.without_place = soft.gdr_expected = true;
  soft.compute_capability = 90;
  using enum Mode;
  const Case table[] = {
      {"near, host", facts(Distance::pix, kAll), kNet, false, proxy_gdr, proxy_gdr, Reason::none},
      {"near, GPU", facts(Distance::pix, kAll), kGin, false, gda, proxy_gdr, Reason::not_asked},
      {"near, GPU, CPU rings", facts(Distance::pix, kAll & ~kUar), kGin, false, gda_cpu, proxy_gdr,
       Reason::not_asked},
      {"far, GPU", facts(Distance::unknown, kAll & ~kDevx), kGin, false, proxy_gdr, proxy_gdr,
       Reason::none},
      {"no registration, host", facts(Distance::pix, kAll & ~kGdr), kNet, false, proxy_stage,
       proxy_stage, Reason::none},
      {"no registration, GPU", facts(Distance::pix, kAll & ~kGdr), kGin, false, proxy_stage,
       std::nullopt, Reason::gdr_none},
      {"software, GPU", soft, kGin, true, gda_cpu, gda_cpu, Reason::none},
      {"software, host", soft, kNet, true, proxy_gdr, proxy_gdr, Reason::none}};
  for (const Case& c : table) {
    INFO(c.what);
    const PlacementRecord end = make_record(c.facts, {});
    const Direction d = decide_direction(end, end, c.use);
    CHECK(d.mode == c.decided);
    CHECK(executed(d, end, end, c.use, c.software) == Executed{c.runs, c.reason});
  }
  // Where both ends ask for it, all that the hardware allows.
  for (const ModeChoice wish : {ModeChoice::gda_cpu, ModeChoice::gda}) {
    EndSettings asked;
    asked.wish = wish;
    const PlacementRecord one = make_record(facts(Distance::pix, kAll), asked);
    const PlacementRecord other = make_record(facts(Distance::pix, kAll), {});
    const Direction both = decide_direction(one, one, kGin);
    CHECK(both.mode == (wish == ModeChoice::gda ? gda : gda_cpu));
    CHECK(executed(both, one, one, kGin, false) == Executed{both.mode, Reason::none});
    CHECK(executed(decide_direction(one, other, kGin), one, other, kGin, false) ==
          Executed{proxy_gdr, Reason::not_asked});
    CHECK(best_built(kGin, false, gpu_issue_asked(one, one)) == gda);
    CHECK(best_built(kNet, false, gpu_issue_asked(one, one)) == proxy_gdr);
  }
  // What was asked to be staged is not for windows, which never are.
  EndSettings stage;
  stage.wish = ModeChoice::stage;
  const PlacementRecord end = make_record(facts(Distance::pix, kAll), stage);
  const Direction d = decide_direction(end, end, kGin);
  CHECK(d.mode == proxy_stage);
  CHECK(executed(d, end, end, kGin, false) == Executed{proxy_gdr, Reason::never_staged});
  CHECK(executed(decide_direction(end, end, kNet), end, end, kNet, false) ==
        Executed{proxy_stage, Reason::none});
}

TEST_CASE("memory goes through the data-direct function unless that is switched off") {
  EndFacts f = facts(Distance::sys, kBits - 1);
  f.data_direct = Distance::pxb;
  CHECK(make_record(f, {}).distance == Distance::pxb);
  f.data_direct_refused = true;
  without_data_direct(f);
  CHECK_FALSE(f.data_direct_refused);
  const PlacementRecord p = make_record(f, {});
  CHECK(p.distance == Distance::sys);
  CHECK((p.flags & kFlagDataDirect) == 0);
}

}  // namespace twinpath
