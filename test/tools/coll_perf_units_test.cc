// Pure parts of coll_perf: types, patterns, plans and the names in a Slurm node list.
#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/tools/complaint.h"
#include "tools/coll_perf/collective.h"
#include "tools/coll_perf/error.h"
#include "tools/coll_perf/pattern.h"
#include "tools/coll_perf/types.h"

using namespace twinpath::coll;
using twinpath::tools::complaint, twinpath::tools::has;

namespace {

double element(const std::byte* data, DataType type, std::size_t index) {
  return decode(type, data + index * type_info(type).bytes);
}

}  // namespace

TEST_CASE("Types are found by their names and NCCL's short ones, in order") {
  CHECK(parse_types("int8,float") == std::vector{DataType::int8, DataType::float32});
  CHECK(parse_types("bf16,fp16,fp32,fp64,int") == std::vector{DataType::bfloat16, DataType::half,
                                                              DataType::float32, DataType::float64,
                                                              DataType::int32});
  CHECK(parse_types("all").size() == 10);
  CHECK(has(complaint([] { (void)parse_types("float,int128"); }), "\"int128\" is unknown"));
  CHECK(has(complaint([] { (void)parse_types("float,,int8"); }), "\"\" is unknown"));
}

TEST_CASE("Types and reductions have NCCL's numbers") {
  int number = 0;
  for (const DataType type : parse_types("all")) {
    CHECK(static_cast<int>(type) == number++);
    CHECK(type_info(type).type == type);
  }
  CHECK(static_cast<int>(parse_op("sum")) == 0);
  CHECK(static_cast<int>(parse_op("prod")) == 1);
  CHECK(static_cast<int>(parse_op("max")) == 2);
  CHECK(static_cast<int>(parse_op("min")) == 3);
  CHECK(std::string(op_name(parse_op("min"))) == "min");
  CHECK(has(complaint([] { (void)parse_op("avg"); }), "use sum, prod, max or min"));
}

TEST_CASE("Every value up to the limit of a type comes back from its encoding") {
  for (const DataType type : parse_types("all")) {
    const TypeInfo& info = type_info(type);
    std::vector<std::uint32_t> values;
    for (std::uint32_t v = 0; v <= std::min(info.max_exact, 4096U); ++v) values.push_back(v);
    for (const std::uint32_t below : {0U, 1U, 2U}) values.push_back(info.max_exact - below);
    for (const std::uint32_t v : values) {
      unsigned char out[9];
      std::memset(out, 0xa5, sizeof out);
      encode(type, v, out);
      REQUIRE(decode(type, out) == v);
      REQUIRE(out[info.bytes] == 0xa5);  // nothing past the element
    }
  }
}

TEST_CASE("The half and bfloat16 encodings have the bits of the standards") {
  const auto bits = [](DataType type, std::uint32_t value) {
    std::uint16_t out = 0;
    encode(type, value, &out);
    return out;
  };
  CHECK(bits(DataType::half, 0) == 0);
  CHECK(bits(DataType::half, 1) == 0x3c00);
  CHECK(bits(DataType::half, 3) == 0x4200);
  CHECK(bits(DataType::half, 2047) == 0x67ff);
  CHECK(bits(DataType::half, 2048) == 0x6800);
  CHECK(bits(DataType::bfloat16, 0) == 0);
  CHECK(bits(DataType::bfloat16, 1) == 0x3f80);
  CHECK(bits(DataType::bfloat16, 255) == 0x437f);
  CHECK(bits(DataType::bfloat16, 256) == 0x4380);
}

TEST_CASE("A reduction is the reduction of the ranks' data, exact in every type") {
  for (const DataType type : parse_types("all")) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min}) {
      for (const int ranks : {2, 4, 8}) {
        Pattern pattern(type, op, ranks);
        const std::byte* reduced = pattern.reduced(11);
        std::set<double> seen;
        for (std::size_t i = 0; i < 500; ++i) {
          double expected = element(pattern.data(0, 11), type, i);
          for (int rank = 1; rank < ranks; ++rank) {
            const double v = element(pattern.data(rank, 11), type, i);
            expected = op == ReduceOp::sum    ? expected + v
                       : op == ReduceOp::prod ? expected * v
                       : op == ReduceOp::max  ? std::max(expected, v)
                                              : std::min(expected, v);
          }
          REQUIRE(element(reduced, type, i) == expected);
          REQUIRE(expected <= type_info(type).max_exact);
          seen.insert(expected);
        }
        CHECK(seen.size() > 1);  // else a buffer of one value would pass
      }
    }
  }
}

TEST_CASE("A reduction over some ranks leaves the others out") {
  Pattern pattern(DataType::int32, ReduceOp::sum, 4);
  const int some[] = {1, 3};
  const std::byte* reduced = pattern.reduced(some, 5);
  for (std::size_t i = 0; i < 100; ++i) {
    REQUIRE(element(reduced, DataType::int32, i) ==
            element(pattern.data(1, 5), DataType::int32, i) +
                element(pattern.data(3, 5), DataType::int32, i));
  }
}

TEST_CASE("A pattern differs between ranks and between starts, and goes on after its period") {
  Pattern pattern(DataType::float32, ReduceOp::sum, 4);
  constexpr std::size_t kBytes = 4096;
  CHECK(std::memcmp(pattern.data(0, 0), pattern.data(1, 0), kBytes) != 0);
  for (const std::size_t shift : {1UL, 2UL, 1024UL, 4096UL, 65536UL, 1UL << 20}) {
    CHECK(std::memcmp(pattern.data(2, 0), pattern.data(2, shift), kBytes) != 0);
  }
  // The same element from wherever a block starts, also where the block wraps.
  for (const std::size_t start : {0UL, 7UL, kPeriod - 1, kPeriod, 3 * kPeriod + 9}) {
    const std::byte* block = pattern.data(2, start);
    for (const std::size_t i : {0UL, 1UL, kPeriod - 1, kPeriod, kChunkBytes / 4 - 1}) {
      CHECK(std::memcmp(block + 4 * i, pattern.data(2, start + i), 4) == 0);
    }
  }
}

TEST_CASE("A sum that a type cannot hold exactly is refused with the remedy") {
  const std::string text = complaint([] { Pattern(DataType::int8, ReduceOp::sum, 128); });
  CHECK(has(text, "sums of 128 ranks are not exact in int8"));
  CHECK(has(text, "--check 0"));
  CHECK(complaint([] { Pattern(DataType::int8, ReduceOp::sum, 127); }).empty());
  CHECK(complaint([] { Pattern(DataType::int8, ReduceOp::max, 128); }).empty());
}

TEST_CASE("Collectives are found by their names") {
  CHECK(parse_collectives("alltoall,all_reduce") ==
        std::vector{Collective::alltoall, Collective::all_reduce});
  CHECK(parse_collectives("all").size() == 6);
  for (const Collective c : parse_collectives("all")) {
    CHECK(parse_collectives(collective_name(c)) == std::vector{c});
  }
  CHECK(has(complaint([] { (void)parse_collectives("gather"); }), "\"gather\" is unknown"));
}

TEST_CASE("The expected segments cover each receive buffer once and without a gap") {
  for (const Collective c : parse_collectives("all")) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const std::size_t bytes : {1UL, 4UL, 100UL, 4096UL, 1000003UL}) {
          const Plan p = make_plan(c, bytes, 4, rank, ranks, 17);
          std::size_t at = 0;
          for (const Segment& s : p.expected) {
            REQUIRE(s.at == at);
            REQUIRE(s.count > 0);
            REQUIRE(s.source < ranks);
            REQUIRE((s.source == kReduced) == p.reduces);
            at += s.count;
          }
          REQUIRE(at == p.recv_count);
          REQUIRE(p.bytes == 4 * std::max(p.send_count, p.recv_count));
          REQUIRE(p.count > 0);
          REQUIRE(p.in_place_send + p.send_count <= std::max(p.send_count, p.recv_count));
          REQUIRE(p.in_place_recv + p.recv_count <= std::max(p.send_count, p.recv_count));
        }
      }
    }
  }
}

TEST_CASE("A plan says what arrives from whom") {
  const Plan gather = make_plan(Collective::all_gather, 4096, 4, 2, 4, 10);
  CHECK(gather.count == 256);
  CHECK(gather.in_place_send == 512);
  CHECK(gather.expected[3].source == 3);
  CHECK(gather.expected[3].from == 10);

  const Plan scatter = make_plan(Collective::reduce_scatter, 4096, 4, 2, 4, 10);
  CHECK(scatter.in_place_recv == 512);
  CHECK(scatter.expected[0].from == 10 + 512);

  const Plan ring = make_plan(Collective::sendrecv, 4096, 4, 0, 4, 10);
  CHECK(ring.expected[0].source == 3);
  CHECK_FALSE(ring.can_be_in_place);

  const Plan all = make_plan(Collective::alltoall, 4096, 4, 2, 4, 10);
  CHECK(all.expected[1].source == 1);
  CHECK(all.expected[1].from == 10 + 512);  // everybody's part for rank 2

  CHECK(make_plan(Collective::broadcast, 4096, 4, 2, 4, 10).expected[0].source == 0);
}

TEST_CASE("Bus bandwidth counts what crosses a link, as nccl-tests does") {
  const auto factor = [](Collective c, int ranks) {
    return make_plan(c, 1 << 20, 4, 0, ranks, 0).bus_factor;
  };
  CHECK(factor(Collective::all_reduce, 4) == 1.5);
  CHECK(factor(Collective::all_reduce, 2) == 1);
  CHECK(factor(Collective::all_gather, 4) == 0.75);
  CHECK(factor(Collective::reduce_scatter, 4) == 0.75);
  CHECK(factor(Collective::alltoall, 4) == 0.75);
  CHECK(factor(Collective::broadcast, 4) == 1);
  CHECK(factor(Collective::sendrecv, 4) == 1);
  CHECK(factor(Collective::all_reduce, 1) == 1);
}

TEST_CASE("Wrong elements are counted and the first is named with both values") {
  Pattern pattern(DataType::float32, ReduceOp::sum, 2);
  const std::byte* expected = pattern.data(0, 0);
  std::vector<std::byte> got(expected, expected + 4000);
  std::string first;
  CHECK(count_wrong(DataType::float32, got.data(), expected, 1000, 0, first) == 0);
  CHECK(first.empty());
  encode(DataType::float32, 1000, &got[4 * 30]);
  got[4 * 999 + 3] ^= std::byte{0x80};  // only the sign
  CHECK(count_wrong(DataType::float32, got.data(), expected, 1000, 5000, first) == 2);
  CHECK(has(first, "element 5030 is 1000, expected "));
  const std::string kept = first;
  CHECK(count_wrong(DataType::float32, got.data() + 4000 - 4, expected + 4000 - 4, 1, 0, first) ==
        1);
  CHECK(first == kept);
}

TEST_CASE("Rounds of checking use shifts that do not repeat soon") {
  std::set<std::size_t> shifts;
  for (std::uint64_t round = 1; round <= 1000; ++round) shifts.insert(round_shift(round));
  CHECK(shifts.size() == 1000);
  CHECK(*shifts.rbegin() < kPeriod);
}
