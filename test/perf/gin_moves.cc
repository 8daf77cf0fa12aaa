// For how long kernels stand still while their queues move to another port, beside a connection of
// the net transport; and what signals that can move cost beside the adapter's atomics.  Kernels are
// CPU threads; what is compared takes turns.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/extended.h"
#include "test/fabric/failover.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/numbers.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// --- gaps

constexpr std::size_t kMessage = 4096, kWindow = 8;
constexpr std::uint64_t kBefore = 20, kAfter = 100;  // messages

bool silent = false;  // the port loses all without a word; else it goes down

void strike(const Port& port, bool broken) {
  if (silent)
    (void)soft::set_port_loss(port.context, port.number,
                              broken ? soft::PortLoss::all : soft::PortLoss::none);
  else
    (void)soft::set_port_state(port.context, port.number, !broken);
}

// A port is not dead before its retries are over: 0.5 s, as in vm-gaps.
Config gap_config() {
  Config config = soft_config("soft0,soft1");
  config.mode = ModeChoice::proxy;
  config.gin_atomics = AtomicsChoice::never;
  config.ib_timeout = 14;
  config.ib_retry_cnt = 6;
  return config;
}

// Of one run: what the ranks, which are threads, share.
std::atomic<std::uint64_t> arrived{0};
std::atomic<bool> enough{false};
double gap_ms = 0;

Member join_both_ports(Rank& r) {
  if (r.rank == 0) (void)r.devices->merge(std::array{0, 1});
  r.meeting->barrier();
  return join(r, settings30(), static_cast<int>(r.devices->count()) - 1);
}

template <class Kernel>
std::string send_stream(Kernel& kernel, WindowMemory& out, WindowMemory& in, const Port& port) {
  bool struck = false;
  for (std::uint64_t n = 0; !enough; ++n) {
    while (n >= kWindow && kernel.read_signal(1) < n - kWindow + 1 && !enough)
      std::this_thread::yield();
    if (!struck && arrived >= kBefore) {
      strike(port, true);
      struck = true;
    }
    const std::size_t at = n % kWindow * kMessage;
    std::memset(out.data() + at, static_cast<int>(n % 251), kMessage);
    PutExtras extras;
    extras.signal = 0;
    TRY_GIN(kernel.put(1, in.handle(), at, out.handle(), at, kMessage, extras));
  }
  return {};
}

template <class Kernel>
std::string take_stream(Kernel& kernel, WindowMemory& in) {
  std::int64_t longest = 0, last = now_ns();
  for (std::uint64_t n = 0; n < kBefore + kWindow + kAfter; ++n) {
    TRY_GIN(kernel.wait_signal(0, n + 1));
    const std::int64_t now = now_ns();
    if (n >= kBefore) longest = std::max(longest, now - last);
    last = now;
    const std::uint8_t* const data = in.data() + n % kWindow * kMessage;
    for (std::size_t i = 0; i < kMessage; ++i)
      EXPECT_GIN(data[i] == n % 251, static_cast<std::int64_t>(n), static_cast<std::int64_t>(i));
    arrived = n + 1;
    TRY_GIN(kernel.signal(0, 1));
  }
  gap_ms = static_cast<double>(longest) / kMillisecond;
  enough = true;
  return {};
}

std::string stream(Rank& r) {
  Member member = join_both_ports(r);
  EXPECT_GIN(member.context);
  WindowMemory out(*member.comm, kWindow * kMessage), in(*member.comm, kWindow * kMessage);
  EXPECT_GIN(out && in);
  const Port& port = *r.devices->rails(0).front().port;
  auto kernel = member.kernel<GinKernel30>();
  r.meeting->barrier();
  const std::string wrong =
      r.rank == 0 ? send_stream(kernel, out, in, port) : take_stream(kernel, in);
  enough = true;
  r.meeting->barrier();
  if (r.rank == 0) strike(port, false);
  return wrong;
}

double gap_of_kernels() {
  arrived = 0;
  enough = false;
  REQUIRE(run_threads(2, stream, gap_config()) == "");
  return gap_ms;
}

double gap_of_a_connection() {
  const Config config = gap_config();
  auto fabric = open_fabric(config);
  REQUIRE(fabric);
  const auto devices = std::make_shared<Devices>(std::move(fabric).take(), config, std::nullopt);
  const auto transport = make_proxy_transport(devices);
  const int device = merge_devices(*transport, {0, 1});
  auto from = transport->open_session({1, -1}), to = transport->open_session({2, -1});
  REQUIRE((from && to));
  Link link = test::connect(**from, device, **to, device);
  Stream stream(link, {.sizes = {kMessage}, .window = kWindow}, 1);
  REQUIRE(stream.run(kBefore));
  const Port& port = *devices->rails(0).front().port;
  strike(port, true);
  stream.forget_gap();
  const bool well = stream.run(kBefore + kWindow + kAfter);
  strike(port, false);
  INFO(stream.failure);
  REQUIRE(well);
  return static_cast<double>(stream.longest_gap()) / kMillisecond;
}

// --- signals

constexpr int kTurns = 2000, kExchanges = 200;
std::size_t bytes = 8;
double each_us = 0;

std::string there_and_back(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  WindowMemory out(*member.comm, bytes), in(*member.comm, bytes);
  EXPECT_GIN(out && in);
  auto kernel = member.kernel<GinKernel30>();
  PutExtras extras;
  extras.signal = 0;
  r.meeting->barrier();
  const std::int64_t began = now_ns();
  for (std::uint64_t n = 1; n <= kTurns; ++n) {
    if (r.rank == 1) TRY_GIN(kernel.wait_signal(0, n));
    TRY_GIN(kernel.put(1 - r.rank, in.handle(), 0, out.handle(), 0, bytes, extras));
    if (r.rank == 0) TRY_GIN(kernel.wait_signal(0, n));
  }
  if (r.rank == 0) each_us = static_cast<double>(now_ns() - began) / 1000 / kTurns;
  r.meeting->barrier();
  return {};
}

std::string all_to_all(Rank& r) {
  Member member = join(r, settings30());
  EXPECT_GIN(member.context);
  const auto ranks = static_cast<std::size_t>(r.ranks);
  WindowMemory out(*member.comm, bytes * ranks), in(*member.comm, bytes * ranks);
  EXPECT_GIN(out && in);
  auto kernel = member.kernel<GinKernel30>();
  r.meeting->barrier();
  const std::int64_t began = now_ns();
  for (std::uint64_t n = 1; n <= kExchanges; ++n) {
    for (std::size_t p = 0; p < ranks; ++p) {
      PutExtras extras;
      extras.signal = r.rank;
      TRY_GIN(kernel.put(static_cast<int>(p), in.handle(), static_cast<std::size_t>(r.rank) * bytes,
                         out.handle(), p * bytes, bytes, extras));
    }
    for (std::size_t p = 0; p < ranks; ++p) TRY_GIN(kernel.wait_signal(p, n));
  }
  if (r.rank == 0) each_us = static_cast<double>(now_ns() - began) / 1000 / kExchanges;
  r.meeting->barrier();
  return {};
}

double time_of(int ranks, Scenario scenario, bool atomics) {
  Config config = gin_config();
  config.soft_hcas = "soft0";
  config.mode = ModeChoice::proxy;
  config.gin_atomics = atomics ? AtomicsChoice::always : AtomicsChoice::never;
  REQUIRE(run_threads(ranks, scenario, config) == "");
  return each_us;
}

void compare(const char* what, int ranks, Scenario scenario, std::size_t size) {
  const std::uint64_t rounds = number_from("TWINPATH_LONG", 0) != 0 ? 15 : 5;
  bytes = size;
  std::vector<double> atomics, counted, ratios;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    atomics.push_back(time_of(ranks, scenario, true));
    counted.push_back(time_of(ranks, scenario, false));
    ratios.push_back(counted.back() / atomics.back());
  }
  std::printf("%-28s %7zu B: atomics %8.1f us, counted %8.1f us; ratio %.2f (%.2f to %.2f)\n", what,
              size, part_of(atomics, 0.5), part_of(counted, 0.5), part_of(ratios, 0.5),
              part_of(ratios, 0), part_of(ratios, 1));
  std::fflush(stdout);
}

}  // namespace

TEST_CASE("How long a stream stands still when its port fails") {
  const std::uint64_t runs = number_from("TWINPATH_LONG", 0) != 0 ? 100 : 10;
  for (const bool without_a_word : {false, true}) {
    silent = without_a_word;
    std::vector<double> kernels, connection;
    LogCapture log;
    for (std::uint64_t run = 0; run < runs; ++run) {
      kernels.push_back(gap_of_kernels());
      connection.push_back(gap_of_a_connection());
    }
    for (const auto& [who, gaps] : {std::pair("kernels", &kernels), {"connection", &connection}})
      std::printf("%-6s %-10s %3zu runs: p50 %6.1f ms, p90 %6.1f, longest %6.1f\n",
                  silent ? "silent" : "down", who, gaps->size(), part_of(*gaps, 0.5),
                  part_of(*gaps, 0.9), part_of(*gaps, 1));
    std::fflush(stdout);
  }
}

TEST_CASE("What counted signals cost beside the adapter's atomics") {
  compare("put + signal and back", 2, there_and_back, 8);
  compare("put + signal and back", 2, there_and_back, 65536);
  compare("all-to-all of 4 ranks", 4, all_to_all, 8);
  compare("all-to-all of 4 ranks", 4, all_to_all, 65536);
}
