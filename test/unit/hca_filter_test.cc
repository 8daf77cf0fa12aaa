// NCCL_IB_HCA, as a table.
#include "plugin/fabric/fabric.h"
#include "test/support/catch.h"

namespace twinpath {

TEST_CASE("NCCL_IB_HCA takes and leaves adapters as in NCCL") {
  struct Row {
    const char* filter;
    const char* device;
    int port;
    bool accepted;
  };
  const Row rows[] = {
      {"", "mlx5_0", 1, true},
      {"^", "mlx5_0", 1, true},
      {"mlx5", "mlx5_3", 2, true},
      {"mlx5_1", "mlx5_10", 1, true},  // a prefix
      {"=mlx5_1", "mlx5_10", 1, false},
      {"=mlx5_1", "mlx5_1", 1, true},
      {"mlx5_0:1", "mlx5_0", 1, true},
      {"mlx5_0:1", "mlx5_0", 2, false},
      {"mlx5_0,mlx5_2:2", "mlx5_2", 2, true},
      {"mlx5_0,mlx5_2:2", "mlx5_2", 1, false},
      {"^mlx5_0", "mlx5_0", 1, false},
      {"^mlx5_0", "mlx5_1", 1, true},
      {"^mlx5_0:2", "mlx5_0", 1, true},
      {"^mlx5_0:2", "mlx5_0", 2, false},
      {"^=mlx5_1", "mlx5_1", 1, false},
      {"^=mlx5_1", "mlx5_10", 1, true},
      {"mlx5_0:1:0:1", "mlx5_0", 1, true},  // rail and plane do not choose
      {"mlx5_0::3", "mlx5_0", 2, true},
      {"mlx5_0,,", "mlx5_0", 1, true},
      {"mlx5_0,,", "mlx5_1", 1, false},
      {"soft", "mlx5_0", 1, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.filter, row.device, row.port);
    std::string why;
    const auto filter = HcaFilter::parse(row.filter, why);
    REQUIRE(filter.has_value());
    CHECK(filter->accepts(row.device, row.port) == row.accepted);
  }
}

TEST_CASE("NCCL_IB_HCA tells rail and plane of the ports that it takes, by the first entry") {
  struct Row {
    const char* filter;
    const char* device;
    int port;
    NetworkPlace place;
  };
  const Row rows[] = {
      {"", "mlx5_0", 1, {-1, -1}},
      {"mlx5_0", "mlx5_0", 1, {-1, -1}},
      {"mlx5_0:1:0:1", "mlx5_0", 1, {0, 1}},
      {"mlx5_0::3", "mlx5_0", 2, {3, -1}},
      {"mlx5_0:::2", "mlx5_0", 2, {-1, 2}},
      {"=mlx5_1::1,mlx5_10::10", "mlx5_10", 1, {10, -1}},
      {"mlx5_1::1,mlx5_10::10", "mlx5_10", 1, {1, -1}},
      {"mlx5_0:1:4,mlx5_0:2:5:6", "mlx5_0", 2, {5, 6}},
      {"mlx5_0:1:4", "mlx5_0", 2, {-1, -1}},
      {"^mlx5_0::7:7", "mlx5_0", 1, {-1, -1}},
      {"^mlx5_0::7:7", "mlx5_1", 1, {-1, -1}},
      {"mlx5_0::32767:16383", "mlx5_0", 1, {32767, 16383}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.filter, row.device, row.port);
    std::string why;
    const auto filter = HcaFilter::parse(row.filter, why);
    REQUIRE(filter.has_value());
    CHECK(filter->place(row.device, row.port) == row.place);
  }
}

TEST_CASE("NCCL_IB_HCA that cannot be read is refused with the entry quoted") {
  struct Row {
    const char* filter;
    const char* why;
  };
  const Row rows[] = {
      {":1", "':1' has no adapter name"},
      {"mlx5_0:x", "'mlx5_0:x': the port must be"},
      {"mlx5_0:0", "the port must be"},
      {"mlx5_0:256", "the port must be"},
      {"mlx5_0:-1", "the port must be"},
      {"mlx5_0:99999999999", "the port must be"},
      {"mlx5_0:1:a", "'mlx5_0:1:a' is not name[:port[:rail[:plane]]]"},
      {"mlx5_0:1:1:1:1", "is not name[:port"},
      {"mlx5_0:1:32768", "a rail is at most 32767"},
      {"mlx5_0:1:0:16384", "a plane at most 16383"},
      {"mlx5_0:1:-1", "is not name[:port"},
      {"a,^b", "'^b'"},
      {"=^a", "'^a'"},
      {"a, b", "' b'"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.filter);
    std::string why;
    CHECK_FALSE(HcaFilter::parse(row.filter, why).has_value());
    CAPTURE(why);
    CHECK(why.find(row.why) != std::string::npos);
  }
}

TEST_CASE("NCCL_IB_HCA takes 32 entries and no more") {
  std::string text, why;
  for (int i = 0; i < 32; ++i) text += "d" + std::to_string(i) + ",";
  CHECK(HcaFilter::parse(text, why).has_value());
  CHECK_FALSE(HcaFilter::parse(text + "last", why).has_value());
  CHECK(why.find("'last'") != std::string::npos);
}

TEST_CASE("entries of NCCL_IB_HCA that fit nothing present are listed") {
  std::string why;
  const auto filter = HcaFilter::parse("mlx5_0:2,mlx5_1,rocep", why);
  REQUIRE(filter.has_value());
  CHECK(filter->unmatched({{"mlx5_0", 1}, {"mlx5_1", 1}}) ==
        std::vector<std::string>{"mlx5_0:2", "rocep"});
  CHECK(filter->unmatched({{"mlx5_0", 2}, {"mlx5_1", 1}, {"rocep3s0", 1}}).empty());
  CHECK_FALSE(filter->excludes());
  CHECK_FALSE(filter->empty());
}

}  // namespace twinpath
