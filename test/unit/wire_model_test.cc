// Every interleaving of a small world of the wire protocol: the protocol is right in all of them,
// and each known mistake is found, so the search would find it.
#include <cstdlib>

#include "test/support/catch.h"
#include "test/unit/wire_search.h"

namespace twinpath::model {
namespace {

const Receive group{{0, 1}}, one{{0}}, other{{1}}, optional{{0}, true}, other_optional{{1}, true};

// When the sender uses the optional one's cell it is two cells on, and has one left before that.
const Program answered_ahead{one, one, other, optional, one, one, one, one};

// All interleavings, or those up to the first fault.
Outcome tried(const Program& program, const Defects& defects = {}) {
  const Outcome o = explore(program, defects);
  if (std::getenv("TWINPATH_TEST_SHOW") != nullptr)
    WARN(o.states << " states, fault: " << name(o.fault));
  return o;
}

TEST_CASE("Whatever order things happen in, each receive gets its own bytes once",
          "[search][all-orders]") {
  struct World {
    const char* what;
    Program program;
    std::size_t states;  // about; far fewer would mean that something cannot happen any more
  };
  const World world = GENERATE(values<World>({
      {"groups", {group, group, group, group}, 300'000},
      {"one tag", {one, one, one, one, one, one}, 30'000},
      {"groups among single receives", {one, other, group, other, one, group}, 300'000},
      {"optional ones only", std::vector(8, optional), 8'000},
      {"optional ones among others",
       {optional, group, optional, other, optional, optional, one},
       300'000},
      {"optional ones of two tags",
       {optional, other_optional, optional, other_optional, other_optional, optional, optional},
       20'000},
      {"an optional one whose tag does not come again",
       {optional, other, other, other, other, other},
       50'000},
      {"an optional one answered before its elder", answered_ahead, 10'000},
  }));
  INFO(world.what);
  const Outcome o = tried(world.program);
  INFO(o.path);
  CHECK(name(o.fault) == name(Fault::none));
  CHECK(o.states > world.states);
}

TEST_CASE("The search finds each known mistake", "[search]") {
  struct Mistake {
    const char* what;
    bool Defects::*switched_on;
    Program program;
    Fault fault;
  };
  const Program groups(4, group);
  const Mistake mistake = GENERATE_COPY(values<Mistake>({
      {"a parcel carries stale bytes in its holes", &Defects::parcel_with_holes, groups,
       Fault::no_receive},
      {"a parcel slot is used again without credit", &Defects::slots_without_credit, groups,
       Fault::parcel_lost},
      {"credit says how many parcels were copied, not which", &Defects::count_out_of_order, groups,
       Fault::parcel_lost},
      {"credit goes backwards",
       &Defects::count_of_older_cell,
       {other, one, one, one, one},
       Fault::wrong_credit},
      {"a message insists on a parcel", &Defects::only_parcels, groups, Fault::stuck},
      {"the place of an optional cell is free too early", &Defects::cells_freed_when_sent,
       std::vector(8, optional), Fault::cell_lost},
      {"a cell that was not read is reported as used", &Defects::reported_before_read,
       std::vector(8, optional), Fault::cell_lost},
      {"the sender does not say how many cells it has used", &Defects::no_report,
       std::vector(8, optional), Fault::stuck},
      {"a report that does not reach the optional cell ends the debt", &Defects::report_ends_debt,
       answered_ahead, Fault::stuck},
      {"an older report comes last",
       &Defects::reports_out_of_order,
       {optional, one, optional, one, one, one, one},
       Fault::stuck},
      {"a cell waits for company",
       &Defects::cells_wait_for_company,
       {one, other, one},
       Fault::stuck},
  }));
  INFO(mistake.what);
  Defects defects;
  defects.*mistake.switched_on = true;
  const Outcome o = tried(mistake.program, defects);
  INFO(o.path);
  CHECK(name(o.fault) == name(mistake.fault));
}

}  // namespace
}  // namespace twinpath::model
