// Groups whose members come in the order of their cells: their parcel is laid together as they
// come, and whatever turns out different on the way must not change what arrives.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "proxy/send/send_comm.h"
#include "proxy/wire/parcel.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kGroup = 8, kRoom = 128;

int writes() {
  std::lock_guard hold(Tap::mutex);
  return static_cast<int>(
      std::count_if(Tap::posted.begin(), Tap::posted.end(),
                    [](const Tap::Posted& p) { return p.kind == WrKind::send_data; }));
}

// Eight messages, each with room for 128 bytes; message i under tag i.
class Groups {
 public:
  explicit Groups(Link& link)
      : link_(link), from_(*link.send, kGroup * kRoom, 3), to_(*link.recv, kGroup * kRoom) {}

  void receive() {
    to_.clear();
    std::vector<RecvBuffer> buffers;
    for (std::size_t i = 0; i < kGroup; ++i)
      buffers.push_back(to_.receive(static_cast<int>(i), i * kRoom, kRoom));
    receive_ = start_recv(*link_.recv, buffers);
  }
  void send(std::size_t i, std::size_t bytes) {
    sizes_[i] = bytes;
    REQUIRE(eventually([&] {
      return link_.send->isend(from_.data() + i * kRoom, bytes, static_cast<int>(i), from_.memory,
                               &sends_[i]) == Status::ok &&
             sends_[i] != nullptr;
    }));
  }
  // The next group's first members, of the longest kind.
  void begin(std::size_t members) {
    receive();
    for (std::size_t i = 0; i < members; ++i) send(i, kParcelBytes);
  }
  // Whole groups of the longest members.  Requests are made by the first; before, no group is laid
  // as it comes.
  void whole_rounds(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      begin(kGroup);
      finish_all();
    }
  }
  // As NCCL's abort: the memory goes first, then the comms.
  void take_memory() {
    CHECK(link_.send->deregister_memory(std::exchange(from_.memory, nullptr)) == Status::ok);
  }
  // The comms go first.
  void forget() {
    from_.forget();
    to_.forget();
  }
  void finish_send(std::size_t i) { CHECK(finish(sends_[i]).bytes[0] == sizes_[i]); }
  Status test_send(std::size_t i) {
    Completion c;
    Status s = Status::ok;
    (void)eventually([&] { return (s = sends_[i]->test(c)) != Status::ok || c.done; });
    return s;
  }
  void finish_all() {
    for (std::size_t i = 0; i < kGroup; ++i) finish_send(i);
    finish_receive();
  }
  // What came is what was sent, and nothing else was touched.
  void finish_receive() {
    const Completion c = finish(receive_);
    REQUIRE(c.count == static_cast<int>(kGroup));
    for (std::size_t i = 0; i < kGroup; ++i) {
      CHECK(c.bytes[i] == sizes_[i]);
      const std::uint8_t* const got = to_.data() + i * kRoom;
      CHECK(std::equal(got, got + sizes_[i], from_.data() + i * kRoom));
      CHECK(std::all_of(got + sizes_[i], got + kRoom, [](std::uint8_t b) { return b == 0; }));
    }
  }

 private:
  Link& link_;
  Buffer from_, to_;
  Request* receive_ = nullptr;
  std::array<Request*, kGroup> sends_{};
  std::array<std::size_t, kGroup> sizes_{};
};

TEST_CASE("A group in the order of its cells is one write, round after round") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Groups groups(link);
  groups.whole_rounds(100);
  // But where this thread was away so long that the transport's own went on; without parcels there
  // would be 800.
  CHECK(writes() <= 300);
}

TEST_CASE("A group in order may have members of any length, and change its mind at any of them") {
  World world(soft_config());
  Link link = world.connect();
  Groups groups(link);
  groups.whole_rounds(2);
  const std::size_t usual = GENERATE(0u, 3u, 8u, 63u, 64u);
  const std::size_t other = GENERATE(0u, 5u, 64u, 65u, 128u);
  for (std::size_t at = 0; at < kGroup; ++at) {
    groups.receive();
    for (std::size_t i = 0; i < kGroup; ++i) groups.send(i, i == at ? other : usual);
    groups.finish_all();
    // Two of them in the other order.
    std::array<std::size_t, kGroup> order{};
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::swap(order[at], order[(at + 1) % kGroup]);
    groups.receive();
    for (const std::size_t i : order) groups.send(i, i == at ? other : usual);
    groups.finish_all();
  }
}

TEST_CASE("A group in order whose other members do not come leaves without them") {
  World world(soft_config());
  Link link = world.connect();
  Groups groups(link);
  for (std::size_t sent = 1; sent < 2 * kGroup; ++sent) {
    const std::size_t first = sent % kGroup;
    groups.receive();
    for (std::size_t i = 0; i < first; ++i) groups.send(i, kParcelBytes);
    for (std::size_t i = 0; i < first; ++i) groups.finish_send(i);
    for (std::size_t i = first; i < kGroup; ++i) groups.send(i, 24);
    for (std::size_t i = first; i < kGroup; ++i) groups.finish_send(i);
    groups.finish_receive();
  }
}

TEST_CASE(
    "A group in order that is not complete goes down with its connection, and leaks nothing") {
  World world(soft_config());
  for (int round = 0; round < 3; ++round) {
    Link link = world.connect();
    Groups groups(link);
    groups.whole_rounds(2);
    groups.begin(3);
    groups.forget();
    link.send.reset();
    link.recv.reset();
  }
}

TEST_CASE("An abort takes the memory of a group's members before it closes, whole or broken") {
  // Without another port it breaks for good, and nothing is kept to be sent again.
  const bool alone = GENERATE(false, true);
  const bool breaks = GENERATE(false, true);
  CAPTURE(alone, breaks);
  World world(soft_config(alone ? "soft0" : "soft0,soft1"), -1, Tap::on);
  Link link = world.connect(0, alone ? 0 : 1);
  Buffer other(*link.send, kParcelBytes);
  Groups groups(link);
  groups.whole_rounds(2);
  groups.begin(3);
  if (breaks) {
    Tap::poll_result = -1;
    CHECK(groups.test_send(0) == Status::remote);
  }
  groups.take_memory();
  if (breaks) {
    // The group is still open, and nobody may look at its members.
    Request* next = nullptr;
    CHECK(link.send->isend(other.data(), kParcelBytes, 3, other.memory, &next) != Status::ok);
    CHECK(next == nullptr);
  }
  groups.forget();
  other.forget();
  link.send.reset();
  Tap::poll_result = 0;
  link.recv.reset();
}

TEST_CASE("A receive that needs no completion tells no size of another one") {
  World world(soft_config());
  Link link = world.connect();
  Buffer from(*link.send, 100, 3), to(*link.recv, 100);
  RecvBuffer whole = to.receive(0, 0, 100);
  Request* receive = start_recv(*link.recv, {whole});
  Request* send = start_send(*link.send, from, 100, 0, receive);
  CHECK(finish(send).bytes[0] == 100);
  CHECK(finish(receive).bytes[0] == 100);
  receive = start_recv(*link.recv, {whole}, true);
  CHECK(finish(receive).bytes[0] == 0);
  CHECK(finish(start_send(*link.send, from, 10, 0, nullptr)).bytes[0] == 10);
}

}  // namespace
}  // namespace twinpath::test
