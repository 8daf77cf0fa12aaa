// The page of counters: its places, what a later connection goes on with, and what is left behind.
#include "plugin/base/counter_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "plugin/base/clock.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

using counters::State;

counters::Identity identity_of(const char* host, std::uint32_t pid) {
  counters::Identity id;
  put_name(id.peer_host, host);
  put_name(id.device, "soft0");
  id.peer_pid = pid;
  return id;
}

std::shared_ptr<CounterPage> make_page(const std::string& leave_in = {}) {
  auto page = CounterPage::create("node07", "1.2.3", leave_in);
  REQUIRE(page != nullptr);
  return page;
}

State page_state(const CounterPage& page, std::uint32_t index) {
  return static_cast<State>(page.at(index).state.get());
}

}  // namespace

TEST_CASE("A power of two of nanoseconds has a bucket, and all that is longer the last") {
  CHECK(counters::bucket_of(0) == 0);
  CHECK(counters::bucket_of(1023) == 0);
  CHECK(counters::bucket_of(1024) == 1);
  CHECK(counters::bucket_of(2047) == 1);
  CHECK(counters::bucket_of(2048) == 2);
  for (std::size_t b = 0; b + 1 < counters::kBuckets; ++b) {
    CHECK(counters::bucket_of((std::uint64_t{1024} << b) - 1) == b);
    CHECK(counters::bucket_of(std::uint64_t{1024} << b) == b + 1);
  }
  CHECK(counters::bucket_of(~std::uint64_t{0}) == counters::kBuckets - 1);
}

TEST_CASE("A page says what it is, and nobody else may write to it or change its size") {
  const auto page = make_page();
  const counters::Process& p = page->process();
  CHECK(p.magic == counters::kMagic);
  CHECK(p.version == counters::kVersion);
  CHECK(std::string(p.host.data()) == "node07");
  CHECK(p.pid == static_cast<std::uint32_t>(::getpid()));
  struct stat st {};
  REQUIRE(::fstat(page->fd(), &st) == 0);
  CHECK(st.st_size == static_cast<off_t>(counters::kPageBytes));
  CHECK(::ftruncate(page->fd(), 0) != 0);
  CHECK(::mmap(nullptr, counters::kConnectionsAt, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(),
               0) == MAP_FAILED);
  // Only what is in use is there.
  CHECK(st.st_blocks * 512 < 1 << 20);
}

TEST_CASE("A connection like a closed one goes on with its counts, another does not") {
  const auto page = make_page();
  std::uint32_t sequence = 0;
  {
    const ConnectionCounts c = page->open(identity_of("a", 1));
    CHECK(page->process().used.load() == 1);
    CHECK(page_state(*page, 0) == State::open);
    c.get()->rails[0].messages.set(5);
    c.get()->rails[0].bytes.add(100);
    sequence = page->at(0).sequence.load();
    CHECK(sequence % 2 == 0);
  }
  CHECK(page_state(*page, 0) == State::closed);
  const ConnectionCounts other = page->open(identity_of("a", 2));
  CHECK(other.get() == &page->at(1));
  const ConnectionCounts again = page->open(identity_of("a", 1));
  REQUIRE(again.get() == &page->at(0));
  CHECK(page->at(0).messages_before == 5);
  CHECK(page->at(0).messages() == 0);
  CHECK(page->at(0).rails[0].bytes.get() == 100);
  CHECK(page->at(0).sequence.load() == sequence + 2);
  // A second one of the same peer, while the first is open, has a place of its own.
  const ConnectionCounts beside = page->open(identity_of("a", 1));
  CHECK(beside.get() == &page->at(2));
}

TEST_CASE("A full page takes a closed place, and without one it counts unseen") {
  const auto page = make_page();
  std::vector<std::optional<ConnectionCounts>> all(counters::kMaxConnections);
  for (std::uint32_t i = 0; i < counters::kMaxConnections; ++i)
    all[i].emplace(page->open(identity_of("a", i)));
  CHECK(page->process().uncounted.get() == 0);
  const ConnectionCounts unseen = page->open(identity_of("b", 1));
  CHECK(page->process().uncounted.get() == 1);
  unseen.get()->rails[0].messages.set(7);  // there is memory behind it
  all[9]->get()->waited_ns[2].add(3);
  all[9]->get()->rails[1].buckets[4].add(3);
  all[9].reset();
  const ConnectionCounts late = page->open(identity_of("b", 2));
  CHECK(late.get() == &page->at(9));
  CHECK(page->at(9).waited_ns[2].get() == 0);
  CHECK(page->at(9).rails[1].buckets[4].get() == 0);
  CHECK(page->at(9).identity.peer_pid == 2);
}

TEST_CASE("A communicator's name stays behind its end, and the first to end gives its place") {
  const auto page = make_page();
  const counters::Process& p = page->process();
  counters::CommunicatorIdentity who;
  put_name(who.name, "tp");
  std::vector<counters::Communicator*> all;
  for (std::uint32_t i = 0; i < counters::kMaxCommunicators; ++i) {
    who.id = i + 1;
    all.push_back(page->begin_communicator(who));
    REQUIRE(all.back() == &p.communicators[i]);
    CHECK(p.communicators_used.load() == i + 1);
  }
  CHECK(page->begin_communicator(who) == nullptr);
  CHECK(p.unnamed.get() == 1);
  for (const std::size_t i : {40, 3, 40}) page->end_communicator(all[i]);
  page->end_communicator(nullptr);
  page->end_communicator(reinterpret_cast<char*>(all[7]) + 1);
  CHECK(all[7]->state.get() == static_cast<std::uint32_t>(counters::CommunicatorState::living));
  CHECK(all[40]->state.get() == static_cast<std::uint32_t>(counters::CommunicatorState::ended));
  CHECK(all[40]->identity.id == 41);
  const std::uint32_t sequence = all[40]->sequence.load();
  who.id = 1000;
  CHECK(page->begin_communicator(who) == all[40]);
  CHECK(all[40]->identity == who);
  CHECK(all[40]->sequence.load() == sequence + 2);
  CHECK(page->begin_communicator(who) == all[3]);
  CHECK(page->begin_communicator(who) == nullptr);
}

TEST_CASE("A copy is left behind for a connection that is lost, and when the last one closes") {
  char folder[] = "/tmp/twinpath-counters-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string file =
      std::string(folder) + "/twinpath-node07-" + std::to_string(::getpid()) + ".counters";
  {
    const auto page = make_page(folder);
    ConnectionCounts a = page->open(identity_of("a", 1));
    std::optional<ConnectionCounts> b(page->open(identity_of("b", 1)));
    CHECK(::access(file.c_str(), F_OK) != 0);
    a.lost();
    CHECK(page_state(*page, 0) == State::lost);
    // By a thread of its own.
    for (const std::int64_t end = now_ns() + 30 * kSecond;
         ::access(file.c_str(), F_OK) != 0 && now_ns() < end;)
      ::usleep(1000);
    REQUIRE(::access(file.c_str(), F_OK) == 0);
    CHECK(std::filesystem::file_size(file) ==
          counters::kConnectionsAt + 2 * sizeof(counters::Connection));
    REQUIRE(::unlink(file.c_str()) == 0);
    b.reset();
    CHECK(::access(file.c_str(), F_OK) != 0);
  }
  CHECK(::access(file.c_str(), F_OK) == 0);
  std::filesystem::remove_all(folder);

  const test::LogCapture log;
  {
    const auto page = make_page("/nowhere/at/all");
    const ConnectionCounts c = page->open(identity_of("a", 1));
  }
  CHECK(log.warnings().size() == 1);
}

TEST_CASE(
    "Whatever others put into the folder of the copies, the last close does not wait for it") {
  char folder[] = "/tmp/twinpath-counters-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string file =
      std::string(folder) + "/twinpath-node07-" + std::to_string(::getpid()) + ".counters";
  for (const char* end : {"", ".new"}) REQUIRE(::mkfifo((file + end).c_str(), 0666) == 0);
  {
    const auto page = make_page(folder);
    const ConnectionCounts a = page->open(identity_of("a", 1));
  }
  CHECK(std::filesystem::is_regular_file(file));
  std::filesystem::remove_all(folder);
}

}  // namespace twinpath
