// tools/common/histogram.h: what it says of values that it does not keep.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "test/support/catch.h"
#include "tools/common/failure.h"
#include "tools/common/histogram.h"
#include "tools/common/statistics.h"

using namespace twinpath::tools;

TEST_CASE("Quantiles of a histogram are those of the values, within half a bucket") {
  std::mt19937_64 random(7);
  Histogram h;
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    // From a few to 10^9, as latencies with a long tail.
    const auto v = static_cast<std::uint64_t>(
        std::exp(std::generate_canonical<double, 40>(random) * std::log(1e9)));
    h.add(v);
    values.push_back(static_cast<double>(v));
  }
  const Statistics s = summarize(values);
  CHECK(h.count() == s.count);
  CHECK(static_cast<double>(h.min()) == s.min);
  CHECK(static_cast<double>(h.max()) == s.max);
  CHECK(h.mean() == Approx(s.mean));
  std::sort(values.begin(), values.end());
  for (const double q : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
    CHECK(h.quantile(q) == Approx(values[rank - 1]).epsilon(0.004));
  }
}

TEST_CASE("Small values are exact, and the largest possible one has its place") {
  Histogram h;
  for (std::uint64_t v = 0; v < 256; ++v) h.add(v);
  for (std::uint64_t v = 0; v < 256; ++v)
    CHECK(h.quantile((static_cast<double>(v) + 1) / 256) == static_cast<double>(v));
  Histogram edge;
  for (const std::uint64_t v : {255ul, 256ul, 257ul, 511ul, 512ul, ~0ul}) edge.add(v);
  CHECK(edge.max() == ~0ul);
  CHECK(edge.quantile(1) == static_cast<double>(~0ul));
  CHECK(Histogram().quantile(0.5) == 0);
  CHECK(Histogram().min() == 0);
}

TEST_CASE("Buckets cover every value once, in order") {
  Histogram h;
  std::uint64_t v = 0;
  for (int i = 0; i < 3000; ++i) h.add(v += 1 + v / 50);
  std::uint64_t all = 0;
  double before = -1;
  for (const Histogram::Bucket& b : h.buckets()) {
    CHECK(b.from >= before);
    CHECK(b.to > b.from);
    CHECK((b.from < 16 || b.to / b.from <= 1.126));  // an eighth of an octave
    CHECK(b.count > 0);
    before = b.to;
    all += b.count;
  }
  CHECK(all == h.count());
  CHECK(before > static_cast<double>(h.max()));
}

TEST_CASE("A histogram survives the way to another process, and adds up") {
  Histogram a, b;
  for (std::uint64_t i = 1; i < 1000; ++i) (i % 3 == 0 ? a : b).add(i * i);
  Histogram sum = Histogram::from_json(nlohmann::json::parse(a.to_json().dump()));
  CHECK(sum.to_json() == a.to_json());
  sum.merge(b);
  CHECK(sum.count() == 999);
  CHECK(sum.min() == 1);
  CHECK(sum.max() == 999 * 999);
  sum.merge(Histogram());  // without values it has no least one
  CHECK(sum.min() == 1);
  const auto refused = [](const char* text) {
    CHECK_THROWS_AS(Histogram::from_json(nlohmann::json::parse(text)), Failure);
  };
  refused(R"({"counts": [[999999, 1]], "min": 0, "max": 0, "sum": 0})");
  refused(R"({"counts": [["x", 1]], "min": 0, "max": 0, "sum": 0})");
  refused(R"({"counts": []})");
  refused("[]");
}
