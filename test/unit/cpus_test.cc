// How many processors a process may use, where its helpers run, and how they wait.
#include "plugin/base/cpus.h"

#include <sched.h>

#include <limits>
#include <string>
#include <thread>

#include "test/support/catch.h"
#include "test/support/needs.h"

using namespace twinpath;

namespace {

cpu_set_t binding() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  return set;
}

cpu_set_t first_of(const cpu_set_t& set) {
  cpu_set_t one;
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  CPU_SET(first, &one);
  return one;
}

// What `body` gives in a thread that is bound to the first of our processors, as a launcher binds.
template <class Body>
auto when_bound_to_one(Body&& body) {
  const cpu_set_t one = first_of(binding());
  decltype(body()) result{};
  std::thread([&] {
    if (sched_setaffinity(0, sizeof one, &one) == 0) result = body();
  }).join();
  return result;
}

}  // namespace

TEST_CASE("a control group's quota is whole processors, rounded up") {
  CHECK(cpus_of_quota("200000 100000\n") == 2);
  CHECK(cpus_of_quota("200001 100000\n") == 3);
  CHECK(cpus_of_quota("50000 100000\n") == 1);
  CHECK(cpus_of_quota("400000\n 100000\n") == 4);  // the first version's two files
}

TEST_CASE("what is no quota is no limit") {
  for (const char* text : {"", "max 100000\n", "-1\n 100000\n", "100000", "100000 0", "0 100000",
                           "x y", "99999999999999999999 1"}) {
    CAPTURE(text);
    CHECK(cpus_of_quota(text) == 0);
  }
}

TEST_CASE("a process that is bound to one processor may use one") {
  CHECK(usable_cpus() >= 1);
  const cpu_set_t all = binding();
  CHECK(usable_cpus() <= CPU_COUNT(&all));
  CHECK(when_bound_to_one([] { return usable_cpus(); }) == 1);
}

TEST_CASE("lists of processors are read as the kernel writes them") {
  struct Row {
    const char* list;
    int count, has, lacks;
  };
  const Row rows[] = {{"0-3\n", 4, 3, 4}, {"0-1,8,10-11\n", 5, 10, 9},
                      {"7", 1, 7, 6},     {"", 0, -1, 0},
                      {"\n", 0, -1, 0},   {"x", 0, -1, 0},
                      {"0-", 0, -1, 0},   {"3,x", 0, -1, 3},
                      {"9-3", 0, -1, 9},  {"0-99999", CPU_SETSIZE, CPU_SETSIZE - 1, -1}};
  for (const Row& row : rows) {
    CAPTURE(row.list);
    const cpu_set_t set = cpus_of_list(row.list);
    CHECK(CPU_COUNT(&set) == row.count);
    if (row.has >= 0) CHECK(CPU_ISSET(row.has, &set));
    if (row.lacks >= 0) CHECK_FALSE(CPU_ISSET(row.lacks, &set));
  }
}

TEST_CASE("a helper runs near to its work where there is room enough") {
  struct Row {
    const char *allowed, *near, *expected;
  };
  const Row rows[] = {{"0-63", "0-31", "0-31"},   {"0-63", "", "0-63"},
                      {"0-7", "32-63", "0-7"},    {"0-33", "32-63", "0-33"},
                      {"0-35", "32-63", "32-35"}, {"5", "0-31", "5"}};
  for (const Row& row : rows) {
    CAPTURE(row.allowed, row.near);
    const cpu_set_t got = nearest_cpus(cpus_of_list(row.allowed), cpus_of_list(row.near));
    const cpu_set_t expected = cpus_of_list(row.expected);
    CHECK(CPU_EQUAL(&got, &expected));
  }
}

TEST_CASE("a helper leaves a narrow binding, unless it is to stay") {
  const cpu_set_t all = binding();
  NEEDS(CPU_COUNT(&all) > 1, "there is one processor only");
  const auto count = [](HelperCpus choice, const char* near) {
    return when_bound_to_one([&] {
      (void)place_helper(choice, near);
      const cpu_set_t now = binding();
      return CPU_COUNT(&now);
    });
  };
  CHECK(count(HelperCpus::near, "") >= CPU_COUNT(&all));
  CHECK(count(HelperCpus::near, "nonsense") >= CPU_COUNT(&all));
  CHECK(count(HelperCpus::inherit, "") == 1);
  CHECK(when_bound_to_one([] { return leave_binding(HelperCpus::near); }));
  // What is roomy is the user's choice.
  if (CPU_COUNT(&all) >= kRoomyBinding) CHECK_FALSE(leave_binding(HelperCpus::near));
}

TEST_CASE("helpers poll where there is room, and give way where there is none") {
  constexpr std::int64_t kSpin = 10'000'000, kEver = std::numeric_limits<std::int64_t>::max();
  struct Row {
    std::int64_t quiet;
    int cpus;
    std::int64_t spin;
    Pause expected;
  };
  const Row rows[] = {
      {0, 64, kSpin, Pause::spin},       {kSpin - 1, 5, kSpin, Pause::spin},
      {kSpin, 5, kSpin, Pause::sleep},   {kEver - 1, 64, kEver, Pause::spin},
      {0, 4, kSpin, Pause::yield},       {199'999, 2, kSpin, Pause::yield},
      {200'000, 2, kSpin, Pause::sleep}, {200'000, 4, kEver, Pause::sleep},
      {50'000, 4, 50'000, Pause::sleep}, {0, 1, kEver, Pause::yield},
      {19'999, 1, kEver, Pause::yield},  {20'000, 1, kEver, Pause::sleep},
  };
  for (const Row& row : rows) {
    CAPTURE(row.quiet, row.cpus, row.spin);
    CHECK(pause_after(row.quiet, row.cpus, row.spin) == row.expected);
  }
}

TEST_CASE("who is held on few of many processors is told so, with what helps") {
  struct Row {
    int bound, quota, online;
    const char* expected;  // a part; null: nothing
  };
  const Row rows[] = {{1, 0, 64, "--bind-to none"}, {2, 0, 64, "on 2 of 64"},
                      {1, 2, 64, "--bind-to none"}, {64, 1, 64, "limits.cpu"},
                      {64, 2, 64, "quota"},         {3, 0, 64, nullptr},
                      {64, 3, 64, nullptr},         {2, 0, 2, nullptr},
                      {1, 0, 1, nullptr},           {64, 0, 64, nullptr}};
  for (const Row& row : rows) {
    CAPTURE(row.bound, row.quota, row.online);
    const std::string text = held_on_few(row.bound, row.quota, row.online);
    CHECK(text.empty() == (row.expected == nullptr));
    if (row.expected != nullptr) CHECK(text.find(row.expected) != std::string::npos);
  }
}
