// Jobs of several processes: who is who, and how they find each other.
#include "tools/common/job.h"

#include <thread>

#include "test/support/catch.h"
#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

// What was thrown; empty when nothing of that kind was.
template <class Kind, class F>
std::string complaint(F call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("The first node of a Slurm node list is its first name, brackets opened") {
  CHECK(first_node("node1") == "node1");
  CHECK(first_node("node1,node2") == "node1");
  CHECK(first_node("node[07-12,15],other") == "node07");
  CHECK(first_node("node[3,5-9]") == "node3");
  CHECK(first_node("node[4]") == "node4");
  CHECK(first_node("login,node[1-2]") == "login");
  CHECK(first_node("node[1-2]-ib.example,x") == "node1-ib.example");
  CHECK(first_node("rack[0-3]node[10-19,30]") == "rack0node10");
  CHECK(first_node("rack[0-3]node[10,30],x[1-2]") == "rack0node10");
}

TEST_CASE("A node list that is empty or cut gives no name") {
  CHECK(first_node("").empty());
  CHECK(first_node("node[").empty());
  CHECK(first_node("node[07").empty());
  CHECK(first_node("node[07-").empty());
  CHECK(first_node("rack[1-2]node[07-").empty());
}

TEST_CASE("A rendezvous that is not HOST:PORT is refused before anything is opened") {
  const Place place{1, 2, 1, "OpenMPI"};
  for (const char* bad : {"host", "host:", ":29500"}) {
    CHECK(has(complaint<BadUsage>([&] { (void)rendezvous(place, bad, 1); }), "is not HOST:PORT"));
  }
}

TEST_CASE("A rank that cannot reach rank 0 says where it tried") {
  const Place place{1, 2, 1, "OpenMPI"};
  const std::string text = complaint<Failure>([&] { (void)rendezvous(place, "127.0.0.1:1", 0.1); });
  CHECK(has(text, "rank 1 cannot reach rank 0 at 127.0.0.1:1"));
  CHECK(has(text, "--rendezvous HOST:PORT"));
}
TEST_CASE("A place given by hand is RANK/RANKS and nothing else") {
  const Place place = parse_place("1/3");
  CHECK(place.rank == 1);
  CHECK(place.size == 3);
  CHECK(place.local_rank == -1);
  for (const char* bad : {"", "1", "/", "1/", "/2", "2/2", "0/1", "-1/2", "a/2", "0/2x", "0/2/3"})
    CHECK(has(complaint<BadUsage>([&] { (void)parse_place(bad); }), "is not RANK/RANKS"));
}

TEST_CASE("A place given by hand needs an address, and wins over a launcher's") {
  CHECK(find_place("1/2", true)->rank == 1);
  CHECK(has(complaint<BadUsage>([&] { (void)rendezvous(parse_place("1/2"), "", 0.1); }),
            "--rank needs --rendezvous HOST:PORT"));
}

TEST_CASE("Ranks of one process are on one host") {
  auto links = Group::socket_pairs(3);
  std::vector<std::thread> threads;
  std::vector<int> hosts(3), beside(3), local(3);
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const auto at = static_cast<std::size_t>(r);
      Group group(r, 3, std::move(links[at]), 20);
      const Hosts found(group);
      hosts[at] = found.one() ? found.count() : 0;
      beside[at] = found.ranks_beside(r);
      local[at] = found.local_rank(r);
    });
  for (std::thread& t : threads) t.join();
  CHECK(hosts == std::vector<int>{1, 1, 1});
  CHECK(beside == std::vector<int>{3, 3, 3});
  CHECK(local == std::vector<int>{0, 1, 2});
}

}  // namespace
}  // namespace twinpath::tools
