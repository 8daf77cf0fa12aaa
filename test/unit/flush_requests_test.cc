// What a receiver remembers of the flushes that NCCL asked for, alone.
#include "proxy/receive/flush_requests.h"

#include "plugin/rdma/devices.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

TEST_CASE("A flush reads through all rails that brought data since the last one that is done") {
  FlushRequests flushes(nullptr);
  CHECK(flushes.rails(0b01) == 0b01);
  flushes.make();
  CHECK(flushes.rails(0) == 0);
  FlushRequest* const first = flushes.take(0b01, 0, nullptr);
  REQUIRE(first != nullptr);
  // The first one is not done: whoever asks now must not take its data for visible before it is.
  CHECK(flushes.rails(0) == 0b01);
  CHECK(flushes.rails(0b100) == 0b101);
  FlushRequest* const second = flushes.take(0b100, 0, nullptr);
  REQUIRE(second != nullptr);
  CHECK(second != first);
  CHECK(flushes.rails(0) == 0b101);
}

TEST_CASE("There is no room for more flushes than slots") {
  FlushRequests flushes(nullptr);
  flushes.make();
  for (int i = 0; i < kFlushSlots; ++i) CHECK(flushes.take(1, 0, nullptr) != nullptr);
  CHECK(flushes.take(1, 0, nullptr) == nullptr);
}

TEST_CASE("A flush is over when its reads are, and what was not read has had its time") {
  FlushRequests flushes(nullptr);
  flushes.make();
  FlushRequest& f = *flushes.take(0b111, 0, nullptr);
  CHECK(f.pending());
  CHECK(f.waits());
  f.posting(0);
  f.posted();
  f.posted();
  CHECK_FALSE(f.waits());
  f.read_done();
  CHECK(f.pending());
  f.read_done();
  CHECK_FALSE(f.pending());
  CHECK(f.landed([]() -> std::int64_t { throw "time does not count"; }));
  // A rail was left out, or its read failed.
  f.posting(50);
  CHECK_FALSE(f.landed([] { return 49; }));
  CHECK(f.landed([] { return 50; }));
  f.posting(0);
  f.posted();
  f.read_failed(70);
  CHECK_FALSE(f.pending());
  CHECK_FALSE(f.landed([] { return 69; }));
  CHECK(f.landed([] { return 70; }));
}

TEST_CASE("Reads of queues that were replaced are not taken for those of the new ones") {
  FlushRequests flushes(nullptr);
  CHECK(flushes.find(0, 1) == nullptr);
  flushes.make();
  FlushRequest& under_way = *flushes.take(1, 0, nullptr);
  FlushRequest& over = *flushes.take(1, 0, nullptr);
  for (FlushRequest* f : {&under_way, &over}) {
    f->posting(0);
    f->posted();
  }
  const std::uint16_t before = under_way.generation(), ended = over.generation();
  CHECK(flushes.find(0, before) == &under_way);
  CHECK(flushes.find(1, ended) == &over);
  CHECK(flushes.find(2, before) == nullptr);
  CHECK(flushes.find(kFlushSlots, before) == nullptr);
  over.read_done();
  flushes.repeat();
  CHECK(flushes.find(0, before) == nullptr);
  CHECK(under_way.waits());
  CHECK(under_way.pending());
  CHECK_FALSE(over.waits());
  CHECK(flushes.find(1, ended) == &over);
  under_way.posting(0);
  CHECK(flushes.find(0, under_way.generation()) == &under_way);
}

}  // namespace
}  // namespace twinpath
