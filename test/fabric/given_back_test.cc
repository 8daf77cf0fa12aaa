// Memory that is given back while a connection still has work of it, as NCCL does when it aborts:
// deregister, free, close.  From the deregistration on no CPU touches it (proxy/README.md).
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kSmall = 64, kInGroup = 8;
constexpr std::uint8_t kSent = 0x77, kOthers = 0x3c;

// What becomes of memory that was given back: something else's, or nobody's.
enum class Then { reused, unmapped };

// A page that is registered on one comm.  Its addresses are never another's.
class Page {
 public:
  static constexpr std::size_t kBytes = 4096;
  explicit Page(Comm& comm, std::uint8_t value = 0) {
    data_ = static_cast<std::uint8_t*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(data_, value, kBytes);
    memory_ = add(comm);
  }
  ~Page() { (void)::munmap(data_, kBytes); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // Registered once more.
  Memory* add(Comm& comm) {
    auto made = comm.register_memory(data_, kBytes, MemoryType::host, 0, -1);
    REQUIRE(made);
    return *made;
  }
  void give_back(Comm& comm, Then then) {
    CHECK(comm.deregister_memory(memory_) == Status::ok);
    if (then == Then::unmapped)
      REQUIRE(::mprotect(data_, kBytes, PROT_NONE) == 0);
    else
      std::memset(data_, kOthers, kBytes);
  }
  bool holds(std::uint8_t value, std::size_t at = 0, std::size_t bytes = kBytes) const {
    return std::all_of(data_ + at, data_ + at + bytes, [=](std::uint8_t b) { return b == value; });
  }
  RecvBuffer place(std::size_t i) {
    return {data_ + i * kSmall, kSmall, static_cast<int>(i), memory_};
  }
  std::uint8_t* data() { return data_; }
  Memory* memory() const { return memory_; }

 private:
  std::uint8_t* data_ = nullptr;
  Memory* memory_ = nullptr;
};

// Small receives that parcels may answer: one of several, or each by itself.
std::vector<Request*> receive_all(RecvComm& comm, Page& to, bool group) {
  std::vector<RecvBuffer> places;
  for (std::size_t i = 0; i < kInGroup; ++i) places.push_back(to.place(i));
  if (group) return {start_recv(comm, places)};
  std::vector<Request*> requests;
  for (const RecvBuffer& place : places) requests.push_back(start_recv(comm, {place}));
  return requests;
}

std::vector<Request*> send_all(SendComm& comm, std::uint8_t* data, Memory* memory) {
  std::vector<Request*> requests(kInGroup);
  for (std::size_t i = 0; i < kInGroup; ++i)
    (void)eventually([&] {
      return comm.isend(data + i * kSmall, kSmall, static_cast<int>(i), memory, &requests[i]) !=
                 Status::again ||
             requests[i] != nullptr;
    });
  return requests;
}

TEST_CASE("No parcel is copied to memory that was given back, through whichever comm") {
  const Then then = GENERATE(Then::reused, Then::unmapped);
  const bool group = GENERATE(true, false);
  const bool by_other = GENERATE(false, true);
  const bool closes = GENERATE(false, true);
  CAPTURE(static_cast<int>(then), group, by_other, closes);
  LogCapture log;
  World world;
  Link link = world.connect(), other = world.connect();
  Comm& owner = by_other ? *other.recv : *link.recv;
  Page from(*link.send, kSent), to(owner), elsewhere(*other.recv);
  Request* const next = start_recv(*other.recv, {elsewhere.place(0)});
  (void)receive_all(*link.recv, to, group);
  to.give_back(owner, then);
  (void)send_all(*link.send, from.data(), from.memory());
  if (closes) {
    link.recv.reset();
  } else {
    // Another connection of the communicator is polled, which brings the parcel.  Without a group
    // the first message goes by itself, and its adapter refuses it.
    CHECK(eventually([&] {
      Completion c;
      (void)next->test(c);
      return group
                 ? log.has(LogLevel::warn, "for a receive whose memory was deregistered meanwhile")
                 : !log.warnings().empty();
    }));
  }
  if (then == Then::reused) CHECK(to.holds(kOthers));
  link.send.reset();  // may hold messages of `from`, which goes before it
}

TEST_CASE("Parcels go on while any registration has the memory") {
  World world;
  Link link = world.connect(), other = world.connect();
  Page from(*link.send, kSent), to(*link.recv);
  Memory* const second = to.add(*other.recv);
  const std::vector<Request*> receives = receive_all(*link.recv, to, true);
  CHECK(link.recv->deregister_memory(to.memory()) == Status::ok);
  for (Request* send : send_all(*link.send, from.data(), from.memory())) finish(send);
  for (Request* receive : receives) CHECK(finish(receive).count == kInGroup);
  CHECK(to.holds(kSent, 0, kInGroup * kSmall));
  CHECK(link.recv->deregister_memory(second) == Status::ok);
}

TEST_CASE("What is held leaves before its memory goes, through whichever comm it is given back") {
  const Then then = GENERATE(Then::reused, Then::unmapped);
  // The first leaves at once, or is the first of a group; the others are held behind it.
  const bool group = GENERATE(true, false);
  const bool by_other = GENERATE(false, true);
  CAPTURE(static_cast<int>(then), group, by_other);
  World world;
  Link link = world.connect(), other = world.connect();
  for (int round = 0; round < 20; ++round) {
    Comm& owner = by_other ? *other.send : *link.send;
    Page from(owner, kSent), to(*link.recv);
    const std::vector<Request*> receives = receive_all(*link.recv, to, group);
    std::vector<Request*> sends = send_all(*link.send, from.data(), from.memory());
    // The last member of the group is for after the end: those before it leave without.
    from.give_back(owner, then);
    for (Request* send : sends) finish(send);
    for (Request* receive : receives) finish(receive);
    CHECK(to.holds(kSent, 0, kInGroup * kSmall));
    CHECK(link.recv->deregister_memory(to.memory()) == Status::ok);
  }
}

TEST_CASE("Members of an open group leave before their memory goes") {
  const bool by_other = GENERATE(false, true);
  World world;
  Link link = world.connect(), other = world.connect();
  Comm& owner = by_other ? *other.send : *link.send;
  Page from(owner, kSent), last(*link.send, kSent), to(*link.recv);
  Request* const receive = receive_all(*link.recv, to, true).front();
  std::vector<Request*> sends;
  for (std::size_t i = 0; i + 1 < kInGroup; ++i) {
    Request* send = nullptr;
    REQUIRE(eventually([&] {
      return link.send->isend(from.data(), kSmall, static_cast<int>(i), from.memory(), &send) ==
                 Status::ok &&
             send != nullptr;
    }));
    sends.push_back(send);
  }
  from.give_back(owner, Then::unmapped);
  for (Request* send : sends) finish(send);
  Request* send = nullptr;
  REQUIRE(link.send->isend(last.data(), kSmall, kInGroup - 1, last.memory(), &send) == Status::ok);
  finish(send);
  CHECK(finish(receive).count == kInGroup);
  CHECK(to.holds(kSent, 0, kInGroup * kSmall));
}

TEST_CASE("Memory is given back and unmapped while another thread takes parcels for it") {
  LogCapture log;
  World world;
  Link other = world.connect();
  Buffer place(*other.recv, 8);
  std::atomic<bool> stop{false};
  Request* const never = start_recv(*other.recv, {place.receive(0)});
  std::thread poller([&] {
    Completion c;
    while (!stop.load()) (void)never->test(c);
  });
  for (int round = 0; round < 30; ++round) {
    Link link = world.connect();
    Page from(*link.send, kSent), to(*link.recv);
    (void)receive_all(*link.recv, to, round % 2 == 0);
    // The page goes as soon as the last message was accepted, or a little later.
    (void)send_all(*link.send, from.data(), from.memory());
    for (int spin = 0; spin < (round % 5) * 200; ++spin)
      std::atomic_thread_fence(std::memory_order_seq_cst);
    to.give_back(*link.recv, Then::unmapped);
    from.give_back(*link.send, Then::unmapped);
    if (round % 3 == 0) link.recv.reset();
  }
  stop = true;
  poller.join();
}

}  // namespace
}  // namespace twinpath::test
