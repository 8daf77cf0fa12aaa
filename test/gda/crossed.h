#pragma once
// Ranks of one host with two ports, each first at one: what fails, and how many queues have their
// first way over that port.
//
// Threads: as of moves.h.
#include <atomic>
#include <cerrno>
#include <string>

#include "test/gda/move_seeds.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {

inline Config two_ports(Config config) {
  config.soft_hcas = "soft0,soft1";
  return config;
}

// Each port fails under ranks that play, without a word or with the adapter's.
inline void lose_each_port(int ranks, std::string (*play)(Rank&)) {
  for (struck = 0; struck < 2; ++struck)
    for (const bool down : {true, false}) {
      INFO(struck_port() << (down ? " is down" : " loses all"));
      fault = {"lost", down, soft::PortLoss::all, 3000, 1};
      const UntilStruck waits;
      LogCapture log;
      CHECK(run_threads(ranks, play, two_ports(merged_config())) == "");
      CHECK(log.has("leaves " + struck_port() + " for " + other_port()));
      CHECK(!log.has("leaves " + other_port()));
    }
  struck = 0;
}

// A port is down for good, much longer than one may be that queues are over.
inline void outlast_each_port(std::string (*ranks)(Rank&)) {
  for (struck = 0; struck < 2; ++struck) {
    INFO(struck_port() << " is down");
    fault = {"down", true};
    Config config = two_ports(merged_config());
    config.failover_hold_ms = 300;
    CHECK(run_threads(2, ranks, config) == "");
  }
  struck = 0;
}

// Soft1 has no room for windows or queue pairs while so.
inline std::atomic<bool> no_windows{false}, no_queues{false};
inline decltype(Verbs::reg_mr_iova2) real_reg_mr = nullptr;
inline decltype(Verbs::create_qp) real_create = nullptr;
inline bool is_soft1(const ibv_pd* pd) { return std::string(pd->context->device->name) == "soft1"; }
inline void refuse_on_soft1(Fabric& fabric) {
  real_reg_mr = fabric.verbs.reg_mr_iova2;
  real_create = fabric.verbs.create_qp;
  fabric.verbs.reg_mr_iova2 = [](ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t iova,
                                 unsigned access) -> ibv_mr* {
    if (!no_windows || !is_soft1(pd)) return real_reg_mr(pd, at, bytes, iova, access);
    errno = ENOMEM;
    return nullptr;
  };
  fabric.verbs.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attr) -> ibv_qp* {
    if (!no_queues || !is_soft1(pd)) return real_create(pd, attr);
    errno = ENOMEM;
    return nullptr;
  };
}

// None can be made then, at any rank.
template <class Memory, class Comm>
std::string refuses_windows(Rank& r, Comm& comm) {
  no_windows = true;
  r.meeting->barrier();
  {
    Memory none(comm, 4096);
    EXPECT_GIN(!none);
  }
  no_windows = false;
  r.meeting->barrier();
  return {};
}

// Each port fails and comes back, some times.  `queues`: that move, by port and whether it is down.
inline void lose_each_port_often(int ranks, std::string (*play)(Rank&),
                                 const std::size_t (&queues)[2][2]) {
  for (struck = 0; struck < 2; ++struck)
    for (const bool down : {true, false}) {
      INFO(struck_port() << (down ? " is down" : " loses all"));
      const LogCapture log;
      fault = {"often", down, soft::PortLoss::all, 5000, 3, 5000};
      fault.times = 3;
      fault.log = &log;
      fault.queues = queues[struck][down ? 1 : 0];
      rounds = kForAsLong + 1;
      furthest = 0;
      CHECK(run_threads(ranks, play, two_ports(soon_back())) == "");
      rounds = kRounds;
      CHECK(log.has(LogLevel::info, "goes back to " + struck_port() + ", which works again"));
      CHECK(!log.has("goes back to " + other_port()));
    }
  struck = 0;
}

}  // namespace twinpath::test
