#pragma once
// --against: two plugins have their turns in one run, round after round, so that what changes on
// the machine meanwhile meets both; the order within a round changes from round to round.  A turn
// is a whole run of its own, with workers of its own: nothing of one plugin is left when the other
// begins.
//
// What is compared are pairs: each round gives one ratio of the two, and the spread of these says
// whether they can be told apart.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/net_perf/report.h"

namespace twinpath::tools {

// Fewer rounds tell nothing apart; and rounds that chance alone would bring more often, neither.
inline constexpr std::size_t kLeastRounds = 5;
inline constexpr double kMostChance = 1.0 / 16;

// How often chance alone has that many of the rounds, or more, on the same side, whichever: the
// sign test of both sides.  1 for no rounds.
double sign_test(std::size_t rounds, std::size_t on_one_side);

struct Verdict {
  const char* text;   // faster, slower, not told apart, too few rounds
  double chance = 1;  // as sign_test(); rounds with a ratio of 1 are on neither side
};
Verdict verdict(const std::vector<double>& ratios);

// Whose turn: false this plugin's, true the other's.  ABBAABBA...
std::vector<bool> turns(int rounds);

// One turn as rank 0 runs it, as run_once().
using TakeTurn = std::function<bool(const Options& turn, Report& report, std::string& why)>;
// All turns, and what they show; gives the exit status.
int run_comparison(const Options& options, const TakeTurn& take);
// The same on another rank of a job, where `take` gives a turn's exit status.
int follow_comparison(const Options& options, const std::function<int(const Options& turn)>& take);

// The rows of one plugin by round, as Report::rows(), and of the other, to rows of the comparison.
// Rounds that only one of them has finished do not count.
nlohmann::json compare_rows(Test test, const std::vector<nlohmann::json>& mine,
                            const std::vector<nlohmann::json>& others);

}  // namespace twinpath::tools
