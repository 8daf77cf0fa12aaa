// Jobs of several processes: who is who, and how they find each other.
#include "tools/common/job.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/tools/complaint.h"
#include "tools/common/failure.h"
#include "tools/common/job_address.h"

namespace twinpath::tools {
namespace {

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
  for (const char* bad : {"::1", "fe80::1", "::1:29500", "[::1]", "[]:29500"}) {
    CHECK(has(complaint<BadUsage>([&] { (void)rendezvous(place, bad, 1); }),
              "an IPv6 address stands in brackets"));
  }
}

// A rank 0 at `listens` and a rank 1 that comes to `calls`; whether each has a link to the other.
bool meet(const std::string& listens, const std::string& calls) {
  int met = 0;
  std::thread zero([&] {
    (void)complaint<Failure>([&] {
      met += static_cast<int>(rendezvous({0, 2, 0, "--rank"}, listens, 10).size() == 1);
    });
  });
  bool came = false;
  (void)complaint<Failure>([&] { came = rendezvous({1, 2, 1, "--rank"}, calls, 10).size() == 1; });
  zero.join();
  return met == 1 && came;
}

TEST_CASE("Ranks meet over IPv6, over IPv4, and where rank 0 knows itself by a name") {
  const UniqueFd probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const bool ipv6 = probe && bind(probe.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  socklen_t length = sizeof at;
  std::string port = std::to_string(20000 + getpid() % 12000);
  if (ipv6) {
    REQUIRE(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0);
    port = std::to_string(ntohs(at.sin6_port));
  }
  const auto place = [&](const char* host) { return std::string(host) + ":" + port; };
  // The probe's socket does not listen: SO_REUSEADDR of the ones below goes beside it.
  const int on = 1;
  if (ipv6) setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  CHECK(meet(place("127.0.0.1"), place("127.0.0.1")));
  CHECK(meet(place("0.0.0.0"), place("127.0.0.1")));  // any name but loopback's
  NEEDS(ipv6, "no IPv6 on the loopback interface");
  CHECK(meet(place("[::1]"), place("[::1]")));
  CHECK(meet(place("[::]"), place("[::1]")));
  CHECK(meet(place("[::]"), place("127.0.0.1")));
}

TEST_CASE("A rank that cannot reach rank 0 says where it tried") {
  const Place place{1, 2, 1, "OpenMPI"};
  const std::string text = complaint<Failure>([&] { (void)rendezvous(place, "127.0.0.1:1", 0.1); });
  CHECK(has(text, "rank 1 cannot reach rank 0 at 127.0.0.1:1"));
  CHECK(has(text, "--rendezvous HOST:PORT"));
  CHECK(has(complaint<Failure>([&] { (void)rendezvous(place, "[::1]:1", 0.1); }),
            "rank 1 cannot reach rank 0 at [::1]:1"));
}

using Environment = std::map<std::string, std::string>;

Lookup lookup_in(const Environment& environment) {
  return [&environment](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  };
}

// Rank 0 on n1 and rank 1 on n2, as variables of both were seen with Slurm 22.05 and Open
// MPI 4.1.4.
struct Launch {
  const char *what, *from;
  Environment zero, one;
  std::vector<std::string> hosts;
};
const Environment kMpirun{
    {"PMIX_NAMESPACE", "7"}, {"OMPI_MCA_ess_base_jobid", "7"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};

Environment mpirun(const char* at, const char* daemon, const Environment& more = {}) {
  Environment out = more;
  out.insert(kMpirun.begin(), kMpirun.end());
  out["OMPI_MCA_orte_hnp_uri"] = at;
  out["OMPI_MCA_orte_local_daemon_uri"] = daemon;
  return out;
}
const Environment kJob{{"SLURM_JOB_ID", "9"}, {"SLURM_JOB_NODELIST", "n[1-2]"}},
    kRemoteStep{{"SLURM_JOB_ID", "9"},
                {"SLURM_JOB_NODELIST", "n[1-2]"},
                {"SLURM_STEP_ID", "0"},
                {"SLURM_STEP_NODELIST", "n2"},
                {"SLURM_STEP_NUM_NODES", "1"}},
    kStep{{"SLURM_JOB_ID", "9"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_NUM_NODES", "2"}};

TEST_CASE("Ranks of one job look for rank 0 where it is, and for no other job's") {
  constexpr auto kFirst = "6.0;tcp://10.0.0.1,192.168.0.1:44659", kLogin = "6.0;tcp://10.0.0.9:4";
  const Launch launches[] = {
      {"mpirun --host n1,n2 on n1",
       "OpenMPI",
       mpirun(kFirst, kFirst),
       mpirun(kFirst, "6.1;tcp://10.0.0.2:9"),
       {"10.0.0.1", "192.168.0.1"}},
      {"mpirun by IPv6",
       "OpenMPI",
       mpirun("6.0;tcp6://[fd00::1]:4", "6.0;tcp6://[fd00::1]:4"),
       mpirun("6.0;tcp6://[fd00::1]:4", "6.1;tcp6://[fd00::2]:4"),
       {"fd00::1"}},
      // Only the rank on the other node is in a step, of that node alone.
      {"mpirun in sbatch",
       "OpenMPI",
       mpirun(kFirst, kFirst, kJob),
       mpirun(kFirst, "6.1;tcp://10.0.0.2:9", kRemoteStep),
       {"n1", "10.0.0.1", "192.168.0.1"}},
      {"mpirun in salloc on another host",
       "OpenMPI",
       mpirun(kLogin, "6.1;tcp://10.0.0.1:9", kJob),
       mpirun(kLogin, "6.2;tcp://10.0.0.2:9", kJob),
       {"n1", "10.0.0.9"}},
      {"srun", "Slurm", kStep, kStep, {"n1"}},
      {"srun --mpi=pmi2", "PMI", kStep, kStep, {"n1"}},
  };
  for (const Launch& l : launches) {
    INFO(l.what);
    const Place zero{0, 2, 0, l.from}, one{1, 2, 0, l.from};
    const JobAddress at = job_address(one, "", "n2", lookup_in(l.one));
    CHECK(at.hosts == l.hosts);
    CHECK(job_address(zero, "", "n1.example", lookup_in(l.zero)).port == at.port);
    CHECK(job_hash(zero, lookup_in(l.zero)) == job_hash(one, lookup_in(l.one)));
    Environment next = l.one;
    for (const char* name : {"PMIX_NAMESPACE", "SLURM_STEP_ID"}) next[name] += "1";
    CHECK(job_hash(one, lookup_in(next)) != job_hash(one, lookup_in(l.one)));
  }
}

TEST_CASE("A rank 0 that nobody would find says so, and so does a launcher that tells nothing") {
  const auto says = [](const Place& place, const Environment& environment) {
    return complaint<BadUsage>([&] { (void)job_address(place, "", "n1", lookup_in(environment)); });
  };
  const Place zero{0, 2, 0, "OpenMPI"};
  const Environment elsewhere = mpirun("6.0;tcp://10.0.0.9:4", "6.1;tcp://10.0.0.1:9");
  CHECK(has(says(zero, elsewhere), "rank 0 runs on n1, and the others look for it where mpirun"));
  CHECK(has(says(zero, kMpirun), "OpenMPI started 2 ranks, but where rank 0 runs is not known"));
  CHECK(has(says({0, 2, 0, "PMI"}, {}), "where rank 0 runs is not known"));
  for (const char* uri : {"", "6.0", "6.0;tcp://", "6.0;tcp://:4", "://", "6.0;tcp:4"})
    CHECK(has(says(zero, mpirun(uri, uri)), "where rank 0 runs is not known"));
}

std::optional<Place> place_in(const Environment& environment) {
  return job_place(lookup_in(environment));
}

TEST_CASE("Who started the process itself says how many there are, not what that was started in") {
  const Environment allocation{{"SLURM_JOB_ID", "1"},
                               {"SLURM_NTASKS", "8"},
                               {"SLURM_NPROCS", "8"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_LOCALID", "0"}};
  const auto with = [&](const Environment& more) {
    Environment all = more;
    all.insert(allocation.begin(), allocation.end());
    return place_in(all);
  };
  CHECK_FALSE(place_in({}));
  // A batch script; a step of one task; the shells that salloc and srun open, by their ids.
  CHECK_FALSE(with({}));
  CHECK_FALSE(with({{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  CHECK_FALSE(with({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  CHECK_FALSE(with({{"SLURM_STEP_ID", "4294967290"}}));
  CHECK_FALSE(with({{"SLURM_STEP_ID", "4294967291"}}));
  // One process of mpirun, of Hydra and of torchrun in an allocation, or in a step, of several.
  const Environment step{{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}};
  for (const Environment& alone :
       {Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Environment{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
        Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "x"}}}) {
    Environment inside = alone;
    inside.insert(step.begin(), step.end());
    CHECK_FALSE(with(inside));
  }
  // Steps of several.
  REQUIRE(with(step));
  CHECK(with(step)->size == 8);
  CHECK(with({{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}})->size == 4);
  CHECK(with({{"SLURM_STEP_ID", "3"}})->size == 8);  // a Slurm that tells no more
  const Environment torch{{"RANK", "9"},
                          {"WORLD_SIZE", "16"},
                          {"LOCAL_RANK", "1"},
                          {"SLURM_STEP_ID", "3"},
                          {"SLURM_STEP_NUM_TASKS", "2"}};
  CHECK(with(torch)->size == 2);  // RANK alone may be anybody's
  Environment ours = torch;
  ours["TORCHELASTIC_RUN_ID"] = "x";
  const auto place = with(ours);
  REQUIRE(place);
  CHECK(place->rank == 9);
  CHECK(place->size == 16);
  CHECK(place->local_rank == 1);
  CHECK(std::string(place->from) == "torchrun");
  CHECK(has(complaint<BadUsage>([&] {
              (void)place_in({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}});
            }),
            "PMI_RANK=2 is not below PMI_SIZE=2"));
}

TEST_CASE("Each launcher's variables are read, and the shell that it was called in says nothing") {
  struct Row {
    const char* from;
    Environment all;   // of rank 2 of 4
    Environment near;  // where all are on one host
  };
  const Row rows[] = {
      {"OpenMPI",
       {{"OMPI_COMM_WORLD_RANK", "2"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
       {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}},
      {"MVAPICH",
       {{"MV2_COMM_WORLD_RANK", "2"},
        {"MV2_COMM_WORLD_SIZE", "4"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"}},
       {{"MV2_COMM_WORLD_LOCAL_SIZE", "4"}}},
      {"PMI",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}},
       {{"PMI_LOCAL_SIZE", "4"}}},
      {"PMI",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}},
       {{"MPI_LOCALNRANKS", "4"}}},
      {"jsrun",
       {{"JSM_NAMESPACE_RANK", "2"},
        {"JSM_NAMESPACE_SIZE", "4"},
        {"JSM_NAMESPACE_LOCAL_RANK", "1"}},
       {{"JSM_NAMESPACE_LOCAL_SIZE", "4"}}},
      {"Flux",
       {{"FLUX_TASK_RANK", "2"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"}},
       {{"FLUX_JOB_NNODES", "1"}}}};
  const Environment shell{{"SLURM_JOB_ID", "7"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_STEP_ID", "4294967290"},
                          {"SLURM_STEP_NUM_TASKS", "1"}};
  for (const Row& row : rows) {
    CAPTURE(row.from);
    Environment all = row.all;
    all.insert(shell.begin(), shell.end());
    const auto place = place_in(all);
    REQUIRE(place);
    CHECK(std::string(place->from) == row.from);
    CHECK(place->rank == 2);
    CHECK(place->size == 4);
    CHECK(place->local_rank == 1);
    CHECK(has(complaint<BadUsage>([&] { (void)job_address(*place, "", "n1", lookup_in(all)); }),
              "where rank 0 runs is not known"));
    all.insert(row.near.begin(), row.near.end());
    CHECK(job_address(*place, "", "n1", lookup_in(all)).hosts ==
          std::vector<std::string>{"127.0.0.1"});
    // One task of its own within the allocation.
    for (auto& [name, value] : all) {
      if (row.all.count(name) == 0) continue;
      if (value == "4") value = "1";
      if (value == "2") value = "0";
    }
    CHECK_FALSE(place_in(all));
  }
  for (const auto& [from, id] : {std::pair{"MVAPICH", "PMI_JOBID"}, std::pair{"jsrun", "LSB_JOBID"},
                                 std::pair{"Flux", "FLUX_JOB_ID"}}) {
    const Place one{1, 2, 1, from};
    const Environment first{{id, "1"}}, next{{id, "2"}};
    CHECK(job_hash(one, lookup_in(first)) != job_hash(one, lookup_in(next)));
  }
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

TEST_CASE(
    "A rank that has gone is seen by who waits for something else, and one that speaks is not") {
  auto links = Group::socket_pairs(3);
  Group zero(0, 3, std::move(links[0]), 5), two(2, 3, std::move(links[2]), 5);
  {
    Group one(1, 3, std::move(links[1]), 5);
    one.send_to(0, "x", 1);
    zero.check_links();
    two.check_links();
    char said = 0;
    zero.receive_from(1, &said, 1);
    zero.check_links();
  }
  CHECK(has(complaint<Failure>([&] { zero.check_links(); }), "rank 0: rank 1 has gone"));
  two.check_links();
}

}  // namespace
}  // namespace twinpath::tools
