// The catalogue of reasons: complete, unique, and its sentences have no holes.
#include "topology/model/reason.h"

#include <set>

#include "test/support/catch.h"

namespace twinpath {
namespace {

bool has_braces(const std::string& s) { return s.find_first_of("{}") != std::string::npos; }

}  // namespace

TEST_CASE("every reason has a code of its own and a sentence") {
  std::set<std::string_view> codes;
  std::set<std::string_view> sentences;
  for (const ReasonText& t : reason_catalogue()) {
    CAPTURE(std::string(t.code));
    CHECK(codes.insert(t.code).second);
    CHECK(sentences.insert(t.sentence).second);
    CHECK_FALSE(t.sentence.empty());
    CHECK(t.code.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
          std::string_view::npos);
    CHECK_FALSE(t.sentence.ends_with('.'));
  }
  CHECK(codes.size() == static_cast<std::size_t>(kReasons));
}

TEST_CASE("sentences and remedies without facts use general words for every hole") {
  for (const ReasonText& t : reason_catalogue()) {
    CAPTURE(std::string(t.code));
    const std::string s = sentence(t.reason, {});
    const std::string r = remedy(t.reason, {});
    CHECK_FALSE(has_braces(s));
    CHECK_FALSE(has_braces(r));
    // A hole whose name is not in the table of general words would show as a question mark.
    CHECK(s.find('?') == std::string::npos);
    CHECK(r.find('?') == std::string::npos);
  }
}

TEST_CASE("facts fill the holes of a sentence") {
  const Fact facts[] = {{"gpu", "GPU0"}, {"hca", "mlx5_0"}, {"switch", ""}, {"unused", "x"}};
  CHECK(sentence(Reason::ok_pix, facts) == "GPU0 and mlx5_0 share a PCIe switch");
  const Fact more[] = {{"gpu", "GPU1"}, {"hca", "mlx5_1"}, {"error", "800 not permitted"}};
  CHECK(sentence(Reason::uar_perm, more) ==
        "GPU1 may not map the doorbell of mlx5_1 (800 not permitted)");
  CHECK(remedy(Reason::uar_perm, more) ==
        "NVreg_RegistryDwords=\"PeerMappingOverride=1\", or run with CAP_SYS_ADMIN");
}

TEST_CASE("what blocks a better mode says what to do about it, where something can be done") {
  for (const Reason r : {Reason::gdr_none, Reason::gdr_perm, Reason::gdr_bar1, Reason::gdr_enotsupp,
                         Reason::dd_refused, Reason::gdr_acs, Reason::gdr_far, Reason::uar_perm,
                         Reason::uar_vf, Reason::devx_none, Reason::qbuf_host, Reason::read_off,
                         Reason::mode_conflict, Reason::port_down, Reason::vm_flat}) {
    CAPTURE(std::string(code_of(r)));
    CHECK_FALSE(remedy(r, {}).empty());
  }
}

TEST_CASE("a number that is no reason reads as one that this version does not know") {
  for (int n = kReasons; n < 256; ++n) CHECK(code_of(static_cast<Reason>(n)) == "FOREIGN");
}

}  // namespace twinpath
