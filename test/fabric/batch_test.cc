// Messages that leave together: how many work requests and completions they cost, and that every
// one of them arrives whole, alone or in a parcel, in any order of tags.
#include <algorithm>
#include <chrono>
#include <thread>

#include "proxy/receive/recv_comm.h"
#include "proxy/send/send_comm.h"
#include "proxy/wire/parcel.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

struct Counts {
  int writes = 0, signalled = 0, cells = 0, notices = 0;
};
Counts counts() {
  Counts c;
  std::lock_guard hold(Tap::mutex);
  for (const Tap::Posted& p : Tap::posted) {
    if (p.kind == WrKind::cts) ++c.cells;
    if (p.kind != WrKind::send_data) continue;
    ++c.writes;
    if (p.notice) ++c.notices;
    if ((p.flags & IBV_SEND_SIGNALED) != 0) ++c.signalled;
  }
  return c;
}

// A window of messages of `bytes` each, all in flight at once, message i under tag tags[i].
class Window {
 public:
  Window(Link& link, std::size_t n, std::size_t bytes)
      : link_(link),
        n_(n),
        bytes_(bytes),
        from_(*link.send, n * bytes, 3),
        to_(*link.recv, n * bytes) {
    to_.clear();
  }
  // `groups` receives of n / groups buffers each; tags as given.
  void post(const std::vector<int>& tags, std::size_t group) {
    for (std::size_t i = 0; i < n_; i += group) {
      std::vector<RecvBuffer> buffers;
      for (std::size_t k = i; k < i + group; ++k)
        buffers.push_back(to_.receive(tags[k], k * bytes_, bytes_));
      receives_.push_back(start_recv(*link_.recv, buffers));
    }
    // The cells travel.
    Completion c;
    for (Request* r : receives_) REQUIRE(r->test(c) == Status::ok);
  }
  void send(std::size_t i, int tag) {
    Request* request = nullptr;
    REQUIRE(eventually([&] {
      return link_.send->isend(from_.data() + i * bytes_, bytes_, tag, from_.memory, &request) ==
                 Status::ok &&
             request != nullptr;
    }));
    sends_.push_back(request);
  }
  void finish_first_send() {
    CHECK(finish(sends_.front()).bytes[0] == bytes_);
    sends_.erase(sends_.begin());
  }
  void finish_sends() {
    for (Request* s : sends_) CHECK(finish(s).bytes[0] == bytes_);
    sends_.clear();
  }
  void finish_all() {
    finish_sends();
    for (Request* r : receives_) {
      const Completion c = finish(r);
      for (int i = 0; i < c.count; ++i) CHECK(c.bytes[static_cast<std::size_t>(i)] == bytes_);
    }
    CHECK(std::equal(from_.data(), from_.data() + n_ * bytes_, to_.data()));
  }

 private:
  Link& link_;
  std::size_t n_, bytes_;
  Buffer from_, to_;
  std::vector<Request*> receives_, sends_;
};

TEST_CASE("Small messages in flight together share writes and completions") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Window w(link, 9, 64);
  w.post(std::vector<int>(9, 0), 1);
  // 1, 1, 2 and 4 cells, each time as many as the sender has; the ninth waits.
  CHECK(counts().cells <= 6);
  for (std::size_t i = 0; i < 9; ++i) w.send(i, 0);
  w.finish_all();
  // The first finds nothing under way and leaves at once; the other eight are one parcel, or two
  // when this thread was away so long that the transport's own went on.
  CHECK(counts().writes <= 3);
  CHECK(counts().signalled == counts().writes);
}

// By the rule they leave at the next call, and the next message is one.
TEST_CASE("What is held goes with the message after the completion that it waited for") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  int together = 0;
  for (int round = 0; round < 20; ++round) {
    Window w(link, 3, 64);
    w.post({0, 0, 0}, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // all cells go
    const int before = counts().writes;
    w.send(0, 0);
    w.send(1, 0);
    w.finish_first_send();
    w.send(2, 0);
    w.finish_all();
    const int writes = counts().writes - before;
    CHECK(writes <= 3);
    if (writes == 2) ++together;
  }
  // But for the transport's own thread, which lets go what has waited for 200 us.
  CHECK(together >= 1);
}

TEST_CASE("Messages too large for a parcel leave at once") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Window w(link, 9, 65);
  w.post(std::vector<int>(9, 0), 1);
  for (std::size_t i = 0; i < 9; ++i) w.send(i, 0);
  CHECK(counts().writes == 9);
  w.finish_all();
  CHECK(counts().writes == 9);
}

TEST_CASE("A group is one chain with one completion, whatever its sizes") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  std::vector<int> tags{0, 1, 2, 3, 4, 5, 6, 7};
  Window w(link, 8, 1000);
  w.post(tags, 8);
  CHECK(counts().cells == 1);
  for (std::size_t i : {3, 1, 7, 0, 2, 6, 5, 4}) w.send(i, tags[i]);
  w.finish_all();
  CHECK(counts().writes == 8);
  CHECK(counts().signalled <= 3);
  // All fill their buffers, so that one notice tells of all, unless the thread let some go.
  CHECK(counts().notices == (counts().signalled == 1 ? 1 : 8));
}

TEST_CASE("A group that fills its buffers has one notice, any other one for each message") {
  struct Kind {
    const char* text;
    std::size_t short_by;  // the last message
    bool adaptive;
    int notices, writes;
  };
  const Kind kind = GENERATE(values<Kind>({{"full", 0, false, 1, 4},
                                           {"full, behind its data", 0, true, 1, 5},
                                           {"one is shorter", 1, false, 4, 4},
                                           {"one is shorter, behind their data", 1, true, 4, 8}}));
  INFO(kind.text);
  Config config = soft_config();
  config.ib_adaptive_routing = kind.adaptive ? 1 : 0;
  config.ib_ar_threshold = 100;
  config.ib_qps_per_connection = GENERATE(1, 2);
  LogCapture log;
  World world(config, -1, Tap::on);
  Link link = world.connect();
  constexpr std::size_t kBytes = 3000;
  Buffer from(*link.send, 4 * kBytes, 5), to(*link.recv, 4 * kBytes);
  int as_one = 0;
  for (int round = 0; round < 200 && as_one < 20; ++round) {
    to.clear();
    const Counts before = counts();
    std::vector<RecvBuffer> buffers;
    for (int i = 0; i < 4; ++i)
      buffers.push_back(to.receive(i, static_cast<std::size_t>(i) * kBytes, kBytes));
    Request* const receive = start_recv(*link.recv, buffers);
    std::vector<Request*> sends;
    for (const int i : {2, 0, 1, 3}) {
      const auto at = static_cast<std::size_t>(i) * kBytes;
      sends.push_back(
          start_send(*link.send, from, kBytes - (i == 3 ? kind.short_by : 0), i, receive, at));
    }
    for (Request* send : sends) finish(send);
    const Completion c = finish(receive);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t bytes = kBytes - (i == 3 ? kind.short_by : 0);
      CHECK(c.bytes[i] == bytes);
      CHECK(std::equal(from.data() + i * kBytes, from.data() + i * kBytes + bytes,
                       to.data() + i * kBytes));
    }
    if (counts().signalled - before.signalled != 1) continue;  // the thread let some go
    ++as_one;
    CHECK(counts().notices - before.notices == kind.notices);
    CHECK(counts().writes - before.writes == kind.writes);
  }
  CHECK(as_one >= 1);
  CHECK(log.warnings().empty());
}

TEST_CASE("A notice of a whole group is not believed where it cannot be") {
  enum class Lie { shorter, one_came_before, lone_and_shorter };
  const Lie lie = GENERATE(Lie::shorter, Lie::one_came_before, Lie::lone_and_shorter);
  CAPTURE(static_cast<int>(lie));
  LogCapture log;
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Buffer from(*link.send, 4000, 5), to(*link.recv, 4000);
  std::vector<RecvBuffer> buffers{to.receive(0, 0, 2000)};
  if (lie != Lie::lone_and_shorter) buffers.push_back(to.receive(1, 2000, 2000));
  Request* const receive = start_recv(*link.recv, buffers);
  const auto spoil = [] {
    std::lock_guard hold(Tap::mutex);
    Tap::spoil_notice = kWholeGroupBit;
  };
  if (lie != Lie::one_came_before) spoil();
  // Alone, for the thread lets it go after a while.
  Request* const first = start_send(*link.send, from, 1999, 0, receive);
  finish(first);
  if (lie == Lie::one_came_before) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    spoil();
    finish(start_send(*link.send, from, 2000, 1, receive, 2000));
  }
  Completion c;
  Status status = Status::ok;
  REQUIRE(eventually([&] {
    status = receive->test(c);
    return status != Status::ok || c.done;
  }));
  CHECK(status == Status::remote);
  CHECK_FALSE(c.done);
  CHECK(log.has(LogLevel::warn, "it sent data for no receive posted here"));
}

TEST_CASE("A group's messages are one parcel in whatever order they are sent") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  std::vector<int> tags{0, 1, 2, 3, 4, 5, 6, 7};
  Window w(link, 8, 24);
  w.post(tags, 8);
  for (std::size_t i : {4, 7, 0, 6, 1, 5, 2, 3}) w.send(i, tags[i]);
  w.finish_all();
  CHECK(counts().writes <= 3);
}

TEST_CASE("Half a group does not wait for the other half for ever, nor touch its memory") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  std::vector<int> tags{0, 1, 2, 3, 4, 5, 6, 7};
  Window w(link, 8, 16);
  w.post(tags, 8);
  for (std::size_t i : {3, 0, 2, 7}) w.send(i, tags[i]);
  w.finish_sends();
  for (std::size_t i : {1, 5, 4, 6}) w.send(i, tags[i]);
  w.finish_all();
}

TEST_CASE("Parcels stay whole where the ring of cells wraps") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  // Seven at a time: 256 is no multiple of it, so parcels meet the end at every offset.
  for (unsigned round = 0; round < 300; ++round) {
    Window w(link, 7, 8 + round % 57);
    w.post(std::vector<int>(7, 5), 1);
    for (std::size_t i = 0; i < 7; ++i) w.send(i, 5);
    w.finish_all();
  }
  CHECK(counts().writes < 300 * 7 * 2 / 3);
}

TEST_CASE("Messages to CUDA memory are never copied by the receiver's CPU") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Buffer from(*link.send, 8 * 64, 1);
  std::vector<std::uint8_t> gpu(8 * 64);
  auto memory = link.recv->register_memory(gpu.data(), gpu.size(), MemoryType::cuda, 0, -1);
  REQUIRE(memory);
  std::vector<Request*> receives, sends;
  for (std::size_t i = 0; i < 8; ++i)
    receives.push_back(start_recv(*link.recv, {RecvBuffer{gpu.data() + 64 * i, 64, 0, *memory}}));
  for (std::size_t i = 0; i < 8; ++i)
    sends.push_back(start_send(*link.send, from, 64, 0, receives[7], 64 * i));
  for (Request* s : sends) finish(s);
  for (Request* r : receives) finish(r);
  CHECK(counts().writes == 8);
  CHECK(std::equal(gpu.begin(), gpu.end(), from.data()));
  CHECK(link.recv->deregister_memory(*memory) == Status::ok);
}

TEST_CASE("Cells wait for company while the sender has more of them, but not long") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Buffer to(*link.recv, 8 * 64), from(*link.send, 64, 1);
  Completion c;
  std::vector<Request*> receives;
  for (std::size_t i = 0; i < 9; ++i)
    receives.push_back(start_recv(*link.recv, {to.receive(0, i % 8 * 64, 64)}));
  const int before = counts().cells;
  CHECK(before <= 6);
  // Nothing comes: it may be waited for.
  for (int i = 0; i <= kCtsPatience; ++i) REQUIRE(receives[0]->test(c) == Status::ok);
  CHECK(counts().cells <= before + 1);
  std::vector<Request*> sends;
  for (int i = 0; i < 9; ++i) sends.push_back(start_send(*link.send, from, 64, 0, nullptr));
  for (Request* s : sends) finish(s);
  for (Request* r : receives) finish(r);
}

TEST_CASE("Immediates of parcels and of messages are told apart, and nonsense is refused") {
  for (const ParcelImmediate& p : {ParcelImmediate{0, 1}, ParcelImmediate{255, kParcelMost}}) {
    ParcelImmediate back;
    CHECK(is_parcel(encode(p)));
    REQUIRE(decode_immediate(encode(p), back));
    CHECK(back == p);
    Immediate message;
    CHECK_FALSE(decode_immediate(encode(p), message));
  }
  CHECK_FALSE(is_parcel(encode(Immediate{63, 7, 255, 32, true, true})));
  ParcelImmediate p;
  CHECK_FALSE(decode_immediate(0x80000000u, p));  // nothing inside
  CHECK_FALSE(decode_immediate(0x80001100u, p));  // 17 messages
  CHECK_FALSE(decode_immediate(0xc0000100u, p));  // a bit that nobody sets
  ParcelEntry e;
  REQUIRE(decode_entry(encode(ParcelEntry{kReceiveBits, 64}), e));
  CHECK((e.receive == kReceiveBits && e.bytes == 64));
  CHECK_FALSE(decode_entry(encode(ParcelEntry{0, 65}), e));
}

TEST_CASE("Parcels that were read count without a gap, also when their numbers wrap") {
  ParcelFrontier read;
  CHECK_FALSE(read.read(4));  // its place may not have been used yet
  for (int round = 0; round < 200; ++round) {
    const std::uint8_t at = read.frontier();
    const auto number = [at](int i) { return static_cast<std::uint8_t>(at + i); };
    CHECK(read.read(number(2)));
    CHECK_FALSE(read.read(number(2)));
    CHECK(read.frontier() == at);
    CHECK(read.read(number(0)));
    CHECK(read.frontier() == number(1));
    CHECK(read.read(number(1)));
    CHECK(read.frontier() == number(3));
  }
}

TEST_CASE("A sender never writes a parcel over one that may not have been read") {
  ParcelCredit credit;
  CHECK_FALSE(credit.told(1));  // none was sent
  for (int sent = 0; sent < 1000; ++sent) {
    REQUIRE(credit.any());
    CHECK(credit.take() == static_cast<std::uint8_t>(sent));
    if (sent < 3) continue;
    CHECK_FALSE(credit.any());
    CHECK(credit.told(static_cast<std::uint8_t>(sent - 3)));  // as before
    CHECK_FALSE(credit.any());
    CHECK(credit.told(static_cast<std::uint8_t>(sent - 2)));
  }
}

TEST_CASE("Words are copied whole and the rest byte by byte") {
  std::array<std::uint8_t, 80> from{}, to{};
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i + 1);
  for (std::size_t at : {0, 1, 8})
    for (std::size_t n = 0; n <= 64; ++n) {
      to.fill(0);
      copy_words(to.data() + at, from.data(), n);
      CHECK(std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(n),
                       to.begin() + static_cast<std::ptrdiff_t>(at)));
      CHECK(to[at + n] == 0);
    }
}

}  // namespace
}  // namespace twinpath::test
