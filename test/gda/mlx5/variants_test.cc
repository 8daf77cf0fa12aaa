// Adapters, drivers and libraries that differ: our queues work on each, or the log says why not.
// On the model in this process alone, which is told what to be.
#include "test/gda/mlx5/hooked.h"
#include "test/gda/mlx5/member.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::test;

TEST_CASE("put, signal and counter on every kind of adapter") {
  if (on_libraries()) return;
  const std::string variant =
      GENERATE("", "both-clocks", "free-running", "no-cd", "few", "shared-page", "no-answer");
  CAPTURE(variant);
  LogCapture log;
  Pair<> pair({.log_depth = 4, .variant = variant});
  // Counters are tried where the adapter does not say that queues can wait.
  CHECK(log.warnings().size() == (variant == "no-cd" ? 2u : 0u));
  CHECK(log.has("(cd), which counters use") == (variant == "no-cd"));
  auto kernel = pair.a.kernel();
  for (std::size_t i = 0; i < 64; ++i) pair.a.data()[i] = static_cast<std::uint8_t>(i + 1);
  CHECK(kernel.put(1, pair.a.window(), 4096, pair.a.window(), 0, 64, {.signal = 1, .counter = 2}) ==
        0);
  CHECK(kernel.flush(1) == 0);
  CHECK(kernel.flush_counters(1) == 0);
  CHECK(kernel.read_counter(2) == 1);
  auto there = pair.b.kernel();
  CHECK(there.wait_signal(1, 1) == 0);
  CHECK(std::memcmp(pair.b.data() + 4096, pair.a.data(), 64) == 0);
}

TEST_CASE("a context without DevX is told from a limit of memory") {
  if (on_libraries()) return;
  Hooked h("no-devx");
  LogCapture log;
  CHECK(h.open() == Status::unsupported);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has("opened without DevX"));
  CHECK(log.has("UCTX"));
  CHECK_FALSE(log.has("memlock"));
}

TEST_CASE("a driver that drops the answer: where it can be seen") {
  if (on_libraries()) return;
  for (const bool answers : {true, false}) {
    Hooked h(answers ? "" : "no-answer");
    REQUIRE(h.open() == Status::ok);
    LogCapture log;
    gda::mlx5::CqRequest nowhere;
    nowhere.eqn = h.driven->event_queue();
    const auto made = h.driven->create(gda::mlx5::create_cq(nowhere), "completion queue of nobody");
    CHECK_FALSE(made);
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.has("the adapter refused: bad resource (status 0x5, syndrome 0x") == answers);
    CHECK(log.has("the driver refused: Invalid argument (errno 22, without an answer)") ==
          !answers);
    CHECK(log.has("mlx5:mlx5_cmd") == !answers);
    CHECK_FALSE(log.has("dmesg"));
  }
}
