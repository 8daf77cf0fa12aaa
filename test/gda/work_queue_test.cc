// The front end of one queue: order, back-pressure, late bytes, doorbells, errors.
#include "gda/served/front/work_queue.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gda/served/front/fetch.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

constexpr auto kNoCqeYet = static_cast<Syndrome>(0xff);

std::uint64_t post_write(Rig& rig, Queue& queue, std::uint64_t offset = 0) {
  return queue.post([&](std::uint64_t i) {
    return make_write(i, queue.device.qpn, offset, swap32(rig.data), offset, swap32(rig.data), 64);
  });
}
std::uint64_t post_bad(Queue& queue) {
  return queue.post([&](std::uint64_t i) {
    return make_write(i, queue.device.qpn, 0, swap32(0xbad00), 0, swap32(0xbad00), 64);
  });
}

// Slots the kernel may write again hold poison only.
bool poisoned(const Queue& queue, std::uint64_t index) {
  const WqeWords words = copy_wqe(queue.sq + index % queue.depth * kWqeBytes);
  return std::all_of(words.begin(), words.end(), [](std::uint64_t w) { return w == kPoison; });
}

void put_word(Queue& queue, std::uint64_t index, const Wqe& wqe, std::size_t word) {
  auto* at = reinterpret_cast<std::uint64_t*>(queue.sq + index % queue.depth * kWqeBytes) + word;
  std::atomic_ref<std::uint64_t>(*at).store(wqe.words[word], std::memory_order_relaxed);
}

}  // namespace

TEST_CASE("WQEs are issued in order, and their CQEs follow the back end's completions") {
  Rig rig;
  Queue& queue = rig.make();
  for (std::uint64_t i = 0; i < 5; ++i) post_write(rig, queue, i * 64);
  CHECK(queue.front->scan(3) == 3);
  CHECK(queue.front->scan(64) == 2);
  CHECK(queue.front->scan(64) == 0);
  CHECK(rig.back_end.flushes == 2);
  REQUIRE(rig.back_end.seen.size() == 5);
  for (std::uint64_t i = 0; i < 5; ++i) {
    CHECK(rig.back_end.seen[i].index == i);
    CHECK(rig.back_end.seen[i].operation.remote == kRemoteAt + i * 64);
  }
  CHECK(queue.result(0) == kNoCqeYet);
  queue.front->complete(2);
  CHECK(queue.front->produced() == 3);
  CHECK(queue.result(2) == Syndrome::none);
  CHECK(queue.result(3) == kNoCqeYet);
  CHECK(poisoned(queue, 2));
  CHECK_FALSE(poisoned(queue, 3));
  queue.front->complete(1);  // nothing new
  queue.front->complete(4);
  CHECK(queue.front->produced() == 5);
  CHECK_FALSE(queue.front->failed());
}

TEST_CASE("Slots, owner bits and 16-bit numbers go round for many laps") {
  const std::uint64_t first =
      GENERATE(std::uint64_t{0}, std::uint64_t{65536 - 24}, (std::uint64_t{1} << 32) - 24);
  for (const auto kind : {DoorbellKind::count, DoorbellKind::adapter}) {
    Rig rig;
    Queue& queue = rig.make(16, nullptr, kind, 0, first);
    for (std::uint64_t i = first; i < first + 3 * 16 + 5; ++i) {
      REQUIRE(post_write(rig, queue, i % 64 * 64) == i);
      REQUIRE(queue.front->scan(64) == 1);
      CHECK(rig.back_end.seen.back().operation.remote == kRemoteAt + i % 64 * 64);
      CHECK(queue.result(i) == kNoCqeYet);
      queue.front->complete(i);
      CHECK(queue.result(i) == Syndrome::none);
      CHECK((queue.cqe(i)[63] & 1) == (i / 16) % 2);
    }
    CHECK(queue.front->counts().late == 0);
  }
}

TEST_CASE("A slot is poison again before its CQE hands it to the kernel") {
  struct Checking final : CqeWriter {
    void write(std::uint64_t index, const std::uint8_t (&)[64]) override {
      right = right && poisoned(*queue, index);
      ++written;
    }
    void flush() override { flushed = written; }
    const Queue* queue = nullptr;
    bool right = true;
    int written = 0;
    int flushed = 0;
  } cq;
  Rig rig;
  Queue& queue = rig.make();
  cq.queue = &queue;
  WorkQueueSetup setup;
  setup.qpn = queue.device.qpn;
  setup.depth = queue.depth;
  setup.sq = queue.sq;
  setup.doorbell = queue.doorbell;
  setup.keys = &rig.keys;
  setup.peer = 1;
  setup.poison = kPoison;
  WorkQueue front(setup, rig.back_end, cq, [](std::uint32_t) { return nullptr; });
  for (int i = 0; i < 3; ++i) post_write(rig, queue);
  post_bad(queue);
  post_write(rig, queue);
  front.scan(64);
  front.complete(2);
  CHECK(cq.flushed == 4);
  front.scan(64);
  CHECK((cq.written == 5 && cq.flushed == 5));
  CHECK(cq.right);
}

TEST_CASE("An adapter's doorbell is followed over the wrap of its 24 bits") {
  Rig rig;
  const std::uint64_t first = (std::uint64_t{3} << 24) - 20;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::adapter, 0, first);
  for (std::uint64_t i = first; i < first + 40; i += 5) {
    for (int k = 0; k < 5; ++k) post_write(rig, queue);
    REQUIRE(queue.front->scan(64) == 5);
    queue.front->complete(i + 4);
  }
  CHECK(queue.front->produced() == first + 40);
  CHECK(*queue.dbrec == doorbell_record(first + 40));
}

TEST_CASE("An adapter's doorbell that comes after a newer one is passed over") {
  const std::uint64_t first = GENERATE(std::uint64_t{0}, (std::uint64_t{3} << 24) - 4);
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::adapter, 0, first);
  for (int i = 0; i < 6; ++i) post_write(rig, queue);
  REQUIRE(queue.front->scan(64) == 6);
  const std::uint64_t newest = *queue.doorbell;
  for (const std::uint64_t late : {5u, 3u, 1u}) {
    queue.raw_doorbell(adapter_doorbell(first + late, queue.device.qpn));
    CHECK(queue.front->scan(64) == 0);
    CHECK_FALSE(queue.front->failed());
  }
  queue.raw_doorbell(newest);
  CHECK(queue.front->scan(64) == 0);
  post_write(rig, queue);
  CHECK(queue.front->scan(64) == 1);
  queue.front->complete(first + 6);
  CHECK(queue.front->produced() == first + 7);
  CHECK_FALSE(queue.front->failed());
  queue.raw_doorbell(adapter_doorbell(first + 7 + 17, queue.device.qpn));  // more than a lap ahead
  queue.front->scan(64);
  CHECK(queue.front->failed());
}

TEST_CASE("An operation that a full back end refuses is offered again, in its turn") {
  Rig rig;
  Queue& queue = rig.make();
  rig.back_end.room = 2;
  for (std::uint64_t i = 0; i < 4; ++i) post_write(rig, queue, i * 64);
  CHECK(queue.front->scan(64) == 2);
  CHECK(queue.front->scan(64) == 0);
  CHECK(rig.back_end.offers == 4);
  // What the kernel does to a WQE that was taken already changes nothing.
  const Wqe other = make_nop(2, queue.device.qpn);
  put_word(queue, 2, other, 0);
  rig.back_end.room = 8;
  CHECK(queue.front->scan(64) == 2);
  REQUIRE(rig.back_end.seen.size() == 4);
  CHECK(rig.back_end.seen[2].operation.remote == kRemoteAt + 128);
  queue.front->complete(3);
  CHECK(queue.front->produced() == 4);
}

TEST_CASE("A doorbell that cannot be true ends the queue") {
  Rig rig;
  RecordingBackEnd other;
  Queue& queue = rig.make();
  Queue& healthy = rig.make(16, &other);
  post_write(rig, queue);
  queue.front->scan(64);

  int flushed = 0;  // what is believable once the error's CQE is out
  SECTION("more than a lap ahead of the CQEs") {
    queue.raw_doorbell(17);
    flushed = 15;
  }
  SECTION("far ahead") { queue.raw_doorbell(~std::uint64_t{0}); }
  SECTION("going back") { queue.raw_doorbell(0); }
  CHECK(queue.front->scan(64) == 0);
  CHECK(queue.front->state() == QueueState::error);
  CHECK(queue.result(1) == kNoCqeYet);  // the write before it is still under way
  queue.front->complete(0);
  CHECK(queue.result(0) == Syndrome::none);
  CHECK(queue.result(1) == Syndrome::local_qp_operation);
  CHECK(queue.front->scan(1 << 20) == flushed);
  CHECK(queue.front->scan(1 << 20) == 0);

  post_write(rig, healthy);
  CHECK(healthy.front->scan(64) == 1);
  CHECK_FALSE(healthy.front->failed());
}

TEST_CASE("A full lap ahead is in order") {
  Rig rig;
  Queue& queue = rig.make();
  for (int i = 0; i < 16; ++i) post_write(rig, queue);
  CHECK(queue.front->scan(64) == 16);
  CHECK_FALSE(queue.front->failed());
}

TEST_CASE("An adapter's doorbell for another queue ends the queue") {
  Rig rig;
  Queue& queue = rig.make(16, nullptr, DoorbellKind::adapter);
  CHECK(queue.front->scan(64) == 0);
  CHECK_FALSE(queue.front->failed());
  queue.raw_doorbell(adapter_doorbell(1, queue.device.qpn + 1));
  queue.front->scan(64);
  CHECK(queue.front->failed());
}

TEST_CASE("After an operation failed, everything behind it is flushed, now and later") {
  Rig rig;
  Queue& queue = rig.make();
  for (int i = 0; i < 6; ++i) post_write(rig, queue);
  queue.front->scan(4);
  queue.front->complete(0);
  queue.front->fail(2, Syndrome::retry_exceeded);
  CHECK(queue.front->failed());
  CHECK(queue.result(1) == Syndrome::none);  // in order: what is before it was done
  CHECK(queue.result(2) == Syndrome::retry_exceeded);
  CHECK(queue.cqe(2)[56] == 0x08);
  CHECK(queue.result(3) == kNoCqeYet);
  CHECK(queue.front->scan(2) == 2);
  CHECK(queue.front->scan(64) == 1);
  for (std::uint64_t i = 3; i < 6; ++i) CHECK(queue.result(i) == Syndrome::flushed);
  CHECK(rig.back_end.seen.size() == 4);

  // Late news from the back end is none.
  queue.front->complete(3);
  queue.front->fail(3, Syndrome::remote_access);
  CHECK(queue.front->produced() == 6);

  queue.device.cq.consumed = 6;  // as the kernel would be released
  post_write(rig, queue);
  CHECK(queue.front->scan(64) == 1);
  CHECK(queue.result(6) == Syndrome::flushed);
  CHECK(queue.cqe(6)[56] == 0x08);
}

TEST_CASE("An earlier failure overtakes a refused WQE that waits for its turn") {
  Rig rig;
  Queue& queue = rig.make();
  post_write(rig, queue);
  post_write(rig, queue);
  post_bad(queue);
  queue.front->scan(64);
  CHECK(queue.front->failed());
  CHECK(queue.front->produced() == 0);
  queue.front->fail(0, Syndrome::rnr_exceeded);
  queue.front->scan(64);
  CHECK(queue.result(0) == Syndrome::rnr_exceeded);
  CHECK(queue.result(1) == Syndrome::flushed);
  CHECK(queue.result(2) == Syndrome::flushed);
}

TEST_CASE("A back end that is dead ends the queue") {
  Rig rig;
  Queue& queue = rig.make();
  post_write(rig, queue);
  queue.front->scan(1);
  rig.back_end.refuse = true;
  post_write(rig, queue);
  post_write(rig, queue);
  queue.front->complete(0);
  queue.front->scan(64);
  CHECK(queue.result(0) == Syndrome::none);
  CHECK(queue.result(1) == Syndrome::local_qp_operation);
  CHECK(queue.result(2) == Syndrome::flushed);
}

TEST_CASE("An idle queue can be closed") {
  Rig rig;
  Queue& queue = rig.make();
  post_write(rig, queue);
  queue.front->scan(64);
  queue.front->complete(0);
  queue.front->fail(queue.front->issued(), Syndrome::aborted);
  CHECK(queue.result(0) == Syndrome::none);
  CHECK(queue.result(1) == Syndrome::aborted);
  post_write(rig, queue);
  post_write(rig, queue);
  queue.front->scan(64);
  CHECK(queue.result(2) == Syndrome::flushed);
}

TEST_CASE("A back end may complete or fail an operation while it is issued") {
  struct AtOnce final : BackEnd {
    Issued issue(std::uint64_t index, const Operation&) override {
      if (index == 9)
        front->fail(index, Syndrome::remote_operation);
      else
        front->complete(index);
      return Issued::accepted;
    }
    WorkQueue* front = nullptr;
  } back_end;
  Rig rig;
  Queue& queue = rig.make(16, &back_end);
  back_end.front = queue.front.get();
  for (int i = 0; i < 12; ++i) post_write(rig, queue);
  queue.front->scan(64);
  for (std::uint64_t i = 0; i < 9; ++i) CHECK(queue.result(i) == Syndrome::none);
  CHECK(queue.result(9) == Syndrome::remote_operation);
  CHECK(queue.result(11) == Syndrome::flushed);
}
