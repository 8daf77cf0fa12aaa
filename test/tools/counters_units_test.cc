// Reading a page of counters while it is written, and what a summary makes of samples.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <set>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/counter_page.h"
#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/tools/counter_samples.h"
#include "tools/counters/find.h"
#include "tools/counters/summary.h"
#include "tools/exporter/http.h"
#include "tools/exporter/prometheus.h"

namespace twinpath::tools {
namespace {

using counters::Role;
using counters::State;
using counters::Wait;
using test::connection;
using test::process;
using test::shown;
using test::waits;

// Each of whose fields says the same number.
counters::Identity numbered(std::uint32_t n) {
  counters::Identity id;
  put_name(id.peer_host, "host" + std::to_string(n));
  put_name(id.device, "hca" + std::to_string(n));
  put_name(id.reason, std::string(150, static_cast<char>('a' + n % 26)));
  id.peer_pid = n;
  return id;
}

// Connected, and has sent that.
UniqueFd caller_of(const std::string& address, const std::string& request = {}) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  REQUIRE(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()));
  return fd;
}

std::size_t taken(const UniqueFd& fd) {
  std::array<char, 65536> part;
  std::size_t all = 0;
  for (ssize_t n; (n = ::recv(fd.get(), part.data(), part.size(), MSG_DONTWAIT)) > 0;)
    all += static_cast<std::size_t>(n);
  return all;
}

// Takes what there is, to the end or to where the server has not written yet.
bool still_open(const UniqueFd& fd) {
  (void)taken(fd);
  char one;
  return ::recv(fd.get(), &one, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

std::string exposition(const ProcessSample& process, const std::vector<NicCounter>& nics) {
  PrometheusText text;
  text.add(process);
  return text.text(nics, "n", 0);
}

}  // namespace

TEST_CASE("A reader never mixes two users of a place") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  const ConnectionCounts place = page->open(numbered(0));
  std::string why;
  const auto view = CounterView::of_memory(page->fd(), why);
  INFO(why);
  REQUIRE(view != nullptr);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    counters::Connection& c = *place.get();
    for (std::uint32_t n = 0; !stop.load(); n = (n + 1) % 500) {
      begin_change(c);
      c.identity = numbered(n);
      std::this_thread::yield();  // a change may take long
      c.messages_before = n;
      end_change(c);
      std::this_thread::yield();
    }
  });
  std::set<std::uint32_t> seen;
  int mixed = 0, reads = 0;
  for (const std::int64_t end = now_ns() + 5 * kSecond;
       (reads < 200 || seen.size() < 2) && now_ns() < end;) {
    const ProcessSample p = view->read();
    if (p.connections.empty()) continue;
    ++reads;
    const ConnectionSample& c = p.connections.front();
    seen.insert(c.peer_pid);
    const std::string n = std::to_string(c.peer_pid);
    if (c.peer_host != "host" + n || c.device != "hca" + n || c.reason.size() != 150 ||
        c.reason[149] != static_cast<char>('a' + c.peer_pid % 26) || c.messages != c.peer_pid)
      ++mixed;
  }
  stop = true;
  writer.join();
  CHECK(mixed == 0);
  CHECK(seen.size() >= 2);
}

TEST_CASE("Nobody waits for more than all of the time, whenever the wait was counted") {
  ProcessSample p = process("a", 1);
  waits(p, Role::receiver, "b", 2, Wait::peer_data, 1.2);
  p.connections[0].waited_ns[static_cast<std::size_t>(Wait::flush)] = 6 * kSecond;
  const Summary s = summarize({}, {p});
  REQUIRE(s.rows.size() == 1);
  CHECK(s.rows[0].waiting() == Approx(1));
  CHECK(s.rows[0].share[static_cast<std::size_t>(Wait::peer_data)] == Approx(2.0 / 3));
  CHECK(s.rows[0].share[static_cast<std::size_t>(Wait::flush)] == Approx(1.0 / 3));
  // What has been waited for is not cut.
  CHECK(s.rows[0].waited_s[static_cast<std::size_t>(Wait::peer_data)] == Approx(12));
}

TEST_CASE("A place that is being given away is passed by") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  const ConnectionCounts a = page->open(numbered(1)), b = page->open(numbered(2));
  std::string why;
  const auto view = CounterView::of_memory(page->fd(), why);
  REQUIRE(view != nullptr);
  CHECK(view->read().connections.size() == 2);
  a.get()->sequence.fetch_add(1);  // as by a process that died within
  const ProcessSample left = view->read();
  REQUIRE(left.connections.size() == 1);
  CHECK(left.connections[0].peer_pid == 2);
}

TEST_CASE("A reader never mixes two users of a communicator's place, and drops what is damaged") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  std::string why;
  const auto view = CounterView::of_memory(page->fd(), why);
  REQUIRE(view != nullptr);
  counters::CommunicatorIdentity who;
  counters::Communicator* place = page->begin_communicator(who);
  REQUIRE(place != nullptr);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint32_t n = 0; !stop.load(); n = (n + 1) % 500) {
      begin_change(*place);
      place->identity.id = n;
      std::this_thread::yield();
      put_name(place->identity.name, "comm" + std::to_string(n));
      place->identity.rank = n;
      place->identity.ranks = n + 1;
      end_change(*place);
      std::this_thread::yield();
    }
  });
  std::set<std::uint64_t> seen;
  int mixed = 0, reads = 0;
  for (const std::int64_t end = now_ns() + 5 * kSecond;
       (reads < 200 || seen.size() < 2) && now_ns() < end;) {
    const ProcessSample p = view->read();
    if (p.communicators.empty() || p.communicators[0].name.empty()) continue;
    ++reads;
    const CommunicatorSample& c = p.communicators[0];
    seen.insert(c.id);
    if (c.name != "comm" + std::to_string(c.id) || c.rank != c.id || c.ranks != c.id + 1) ++mixed;
  }
  stop = true;
  writer.join();
  CHECK(mixed == 0);
  CHECK(seen.size() >= 2);
  // What no plugin writes: no end of the name, no such rank, no such state.
  place->identity.name.fill('\x1b');
  place->identity.rank = place->identity.ranks;
  const ProcessSample odd = view->read();
  REQUIRE(odd.communicators.size() == 1);
  CHECK(odd.communicators[0].name == std::string(80, '?'));
  CHECK(!odd.communicators[0].rank);
  place->state.set(77);
  CHECK(view->read().communicators.empty());
  place->state.set(1);
  place->sequence.fetch_add(1);
  CHECK(view->read().communicators.empty());
}

TEST_CASE("From page to reader: a connection has its communicator's name, whose end or not") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  std::string why;
  const auto view = CounterView::of_memory(page->fd(), why);
  REQUIRE(view != nullptr);
  const auto begin = [&](std::uint64_t id, std::uint16_t session, const char* name,
                         std::uint32_t rank, std::uint32_t ranks) {
    counters::CommunicatorIdentity who;
    who.id = id;
    who.session = session;
    who.rank = rank;
    who.ranks = ranks;
    put_name(who.name, name);
    return page->begin_communicator(who);
  };
  // Two ranks of one communicator, a split of it, and one without a name.
  begin(7, 1, "world", 0, 4);
  begin(7, 2, "world", 1, 4);
  counters::Communicator* const split = begin(8, 3, "tp", 1, 2);
  begin(9, 4, "", 5, 6);
  page->end_communicator(split);
  std::vector<ConnectionCounts> all;
  for (const auto& [id, session] :
       {std::pair{7, 2}, {7, 0}, {8, 3}, {9, 4}, {10, 0}, {0, 0}, {7, 99}}) {
    counters::Identity c = numbered(1);
    c.communicator = static_cast<std::uint64_t>(id);
    c.session = static_cast<std::uint16_t>(session);
    all.push_back(page->open(c));
  }
  const ProcessSample p = view->read();
  REQUIRE(p.communicators.size() == 4);
  CHECK(p.communicators[2].ended);
  CHECK(!p.communicators[3].ended);
  REQUIRE(p.connections.size() == all.size());
  std::vector<std::string> words;
  for (const ConnectionSample& c : p.connections) words.push_back(c.member.in_words());
  CHECK(words == std::vector<std::string>{" (rank 1 of 4 in world)", " (in world)",
                                          " (rank 1 of 2 in tp)", " (rank 5 of 6)", "", "",
                                          " (in world)"});
  CHECK(p.connections[0].member.brief() == "world 1/4");
  CHECK(p.connections[3].member.brief() == "5/6");
  CHECK(p.connections[1].member.brief() == "world");
}

TEST_CASE("Rows and series of a peer are told apart by communicator, and only where it is known") {
  ProcessSample p = process("a", 1);
  const auto add = [&](const Membership& member) {
    ConnectionSample c = connection(Role::sender, "b", 2);
    c.key = p.connections.size() << 32;
    c.member = member;
    c.messages = 1;
    c.waited_ns[0] = 9 * kSecond;
    p.connections.push_back(c);
  };
  add({"tp \"1\"", 3, 8});
  add({"tp \"1\"", 3, 8});
  add({"", 3, 8});
  add({"", 3, 2});
  add({});
  const Summary s = summarize({}, {p});
  REQUIRE(s.rows.size() == 3);
  REQUIRE(s.culprit);
  for (const PeerRow& row : s.rows) {
    CHECK(row.connections == (row.member.rank ? 2 : 1));
    // Of two communicators without a name in which it is rank 3.
    CHECK(row.member.ranks == (row.member.name.empty() ? 0 : 8));
  }
  const std::string text = exposition({p}, {});
  const std::string series =
      "twinpath_messages_total{node=\"a\",pid=\"1\",peer=\"b pid 2\",gpu=\"\",device=\"mlx5_0\","
      "path=\"HOST\",dir=\"send\"";
  CHECK(text.find(series + ",rank=\"3\",comm_name=\"tp \\\"1\\\"\"} 2\n") != std::string::npos);
  CHECK(text.find(series + ",rank=\"3\"} 2\n") != std::string::npos);
  CHECK(text.find(series + "} 1\n") != std::string::npos);
  ProcessSample named = process("a", 1);
  waits(named, Role::sender, "b", 2, Wait::peer_cts, 0.9);
  named.connections[0].member = {"tp", 3, 8};
  const Summary told = summarize({}, {named});
  REQUIRE(told.culprit);
  CHECK(told.culprit->text.find("a pid 1 (rank 3 of 8 in tp) waits 90%") != std::string::npos);
}

TEST_CASE("A job is told from others by its largest communicator") {
  struct Row {
    std::vector<CommunicatorSample> communicators;
    std::vector<std::uint64_t> connections;
    std::string job;
  };
  const auto communicator = [](std::uint64_t id, std::uint32_t ranks, bool ended = false) {
    return CommunicatorSample{.id = id, .ranks = ranks, .ended = ended};
  };
  for (const Row& row : {
           Row{{}, {}, ""},
           Row{{}, {0, 0x7b, 9}, "7b"},
           Row{{communicator(9, 2), communicator(0x1f, 64), communicator(8, 8)}, {9}, "1f"},
           // All ranks have both.
           Row{{communicator(9, 64), communicator(8, 64)}, {}, "8"},
           Row{{communicator(9, 64, true), communicator(8, 2)}, {}, "8"},
           Row{{communicator(0xfedcba9876543210, 2)}, {}, "fedcba9876543210"},
       }) {
    ProcessSample p = process("a", 1);
    p.communicators = row.communicators;
    for (const std::uint64_t id : row.connections)
      p.connections.emplace_back(connection(Role::sender, "b", 2)).communicator = id;
    CHECK(exposition({p}, {}).find("twinpath_process_info{node=\"a\",pid=\"1\",job=\"" + row.job +
                                   "\",") != std::string::npos);
  }
}

TEST_CASE("A rail that gets less than half of what its port promises is named") {
  struct Row {
    std::uint32_t first, second;  // permille
    std::uint32_t mbps;           // of the second port; the first has 400000
    std::string named;
  };
  for (const Row& row : {Row{500, 500, 400'000, ""}, Row{910, 90, 400'000, "mlx5_1"},
                         Row{0, 1000, 400'000, "mlx5_0"}, Row{800, 200, 100'000, ""},
                         Row{700, 300, 400'000, ""}, Row{0, 0, 400'000, ""}}) {
    CAPTURE(row.first, row.second, row.mbps);
    ProcessSample p = process("a", 1);
    p.ports.push_back({"mlx5_0", "mlx5_0", 1, 400'000, counters::PortState::up, 0, 0, 0, 0});
    p.ports.push_back({"mlx5_1", "mlx5_1", 1, row.mbps, counters::PortState::up, 0, 0, 0, 0});
    ConnectionSample c = connection(Role::sender, "b", 2);
    c.rails.emplace_back().port = "mlx5_1";
    c.rails[0].permille = row.first;
    c.rails[1].permille = row.second;
    c.failovers = 3;
    c.stopped_ns = 2'000'000'000;
    c.longest_stop_ns = 1'500'000'000;
    p.connections.push_back(c);
    const Summary s = summarize({}, {p});
    const std::vector<std::string> lines = slow_rails(s);
    REQUIRE(lines.size() == (row.named.empty() ? 0 : 1));
    if (!row.named.empty())
      CHECK(lines[0].find("rail " + row.named + " is slow: from a pid 1 to b pid 2 it gets ") == 0);
    CHECK(shares(s.rows[0]).size() == (row.first + row.second == 0 ? 0 : 2));
    CHECK(s.rows[0].failovers == 3);
    CHECK(s.rows[0].stopped_s == 2.0);
    CHECK(s.rows[0].longest_stop_s == 1.5);
  }
}

TEST_CASE("What is no page of this version is refused with the reason") {
  std::string why;
  auto memory = SharedMemory::create("twinpath-counters", counters::kPageBytes, Writers::creator);
  REQUIRE(memory);
  CHECK(CounterView::of_memory(memory->fd(), why) == nullptr);
  CHECK(why == "it has no counters in it");
  auto* p = memory->as<counters::Process>();
  p->magic = counters::kMagic;
  p->version = counters::kVersion + 1;
  CHECK(CounterView::of_memory(memory->fd(), why) == nullptr);
  CHECK(why.find("layout 8, this program knows 7") != std::string::npos);
  // An earlier one's page was shorter.
  auto shorter = SharedMemory::create("twinpath-counters", 16384, Writers::creator);
  REQUIRE(shorter);
  shorter->as<counters::Process>()->magic = counters::kMagic;
  shorter->as<counters::Process>()->version = 3;
  CHECK(CounterView::of_memory(shorter->fd(), why) == nullptr);
  CHECK(why.find("layout 3, this program knows 7") != std::string::npos);
  // Numbers that lead out of the page are held to it, and text is printable.
  p->version = counters::kVersion;
  p->connection_bytes = sizeof(counters::Connection);
  p->connections_at = counters::kConnectionsAt;
  p->capacity = counters::kMaxConnections;
  p->used.store(~0u);
  p->ports_used.set(~0u);
  p->communicators_used.store(~0u);
  p->gin_used.store(~0u);
  p->host.fill('\x1b');
  auto* c = new (memory->as<std::uint8_t>() + counters::kConnectionsAt) counters::Connection;
  c->state.set(1);
  c->identity.rails = 200;
  c->identity.ports.fill(255);
  c->waits_for.set(99);
  c->looked_at.set(1);
  const auto view = CounterView::of_memory(memory->fd(), why);
  REQUIRE(view != nullptr);
  const ProcessSample sample = view->read();
  CHECK(sample.host == std::string(64, '?'));
  CHECK(sample.ports.size() == static_cast<std::size_t>(kMaxPorts));
  CHECK(sample.communicators.empty());
  CHECK(sample.gin.size() == counters::kMaxGinEngines);
  REQUIRE(sample.connections.size() == 1);
  CHECK(sample.connections[0].rails.size() == static_cast<std::size_t>(kMaxRails));
  CHECK_FALSE(sample.connections[0].waits_for);
}

TEST_CASE("A stretch of time is the difference of two samples, whoever came in between") {
  ProcessSample before = process("a", 1), after = process("a", 1);
  after.taken_at = 12 * kSecond;
  ConnectionSample c = connection(Role::sender, "b", 2);
  c.messages = 100;
  c.rails[0].bytes = 1000;
  c.rails[0].buckets[3] = 7;
  before.connections.push_back(c);
  c.messages = 300;
  c.rails[0].bytes = 5000;
  c.rails[0].buckets[3] = 8;
  c.rails[0].buckets[10] = 1;
  after.connections.push_back(c);
  c.key = 77;  // new
  after.connections.push_back(c);
  const Summary s = summarize({before}, {after});
  REQUIRE(s.rows.size() == 1);
  CHECK(s.rows[0].connections == 2);
  CHECK(s.rows[0].messages == 600);
  CHECK(s.rows[0].messages_per_s == Approx((200 + 300) / 2.0));
  CHECK(s.rows[0].bytes_per_s == Approx((4000 + 5000) / 2.0));
  CHECK(timed(s.rows[0].rails[0]) == 2 + 9);
  CHECK(quantile(s.rows[0].rails[0].buckets, 0.5) == 1024u << 3);
  CHECK(quantile(s.rows[0].rails[0].buckets, 0.99) == 1024u << 10);
  // Another process with the same number.
  after.started_at = 11 * kSecond;
  CHECK(summarize({before}, {after}).rows[0].messages_per_s == Approx(600));
}

TEST_CASE("Engines are busy for part of the stretch, or of the time since they began") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  const auto gin = page->open_gin(3);
  gin->operations[1].add(100);
  gin->doorbells.add(10);
  gin->busy_ns.add(kSecond / 2);
  gin->released.add(2);
  for (counters::MoveCounts* moves : {&gin->moves, &page->rma()})
    for (const std::uint64_t ns : {kSecond / 8, kSecond / 4, kSecond / 8}) moves->add(ns);
  page->rma().add(kSecond);
  std::string why;
  const auto view = CounterView::of_memory(page->fd(), why);
  REQUIRE(view != nullptr);
  ProcessSample before = view->read();
  gin->operations[1].add(300);
  gin->operations[3].add(100);
  gin->doorbells.add(20);
  gin->busy_ns.add(kSecond);
  ProcessSample after = view->read();
  REQUIRE(after.gin.size() == 1);
  after.taken_at = before.taken_at + 4 * kSecond;
  const Summary s = summarize({before}, {after});
  REQUIRE(s.gin.size() == 1);
  CHECK(s.gin[0].operations_per_s == Approx(100));
  CHECK(s.gin[0].doorbells_per_s == Approx(5));
  CHECK(s.gin[0].busy == Approx(0.25));
  after.taken_at = after.gin[0].since + 3 * kSecond;
  CHECK(summarize({}, {after}).gin[0].busy == Approx(0.5));
  const std::string text = exposition({after}, {});
  CHECK(text.find("twinpath_gin_operations_total{node=\"here\",pid=\"0\",gpu=\"3\",op=\"write\"} "
                  "400\n") != std::string::npos);
  const std::string labels = "{node=\"here\",pid=\"0\",gpu=\"3\"} ";
  CHECK(text.find("twinpath_gin_released_queues_total" + labels + "2\n") != std::string::npos);
  CHECK(text.find("twinpath_gin_failovers_total" + labels + "3\n") != std::string::npos);
  CHECK(text.find("twinpath_gin_failover_seconds_total" + labels + "0.5\n") != std::string::npos);
  CHECK(text.find("twinpath_gin_failover_longest_seconds" + labels + "0.25\n") !=
        std::string::npos);
  const std::string process = "{node=\"here\",pid=\"0\"} ";
  CHECK(text.find("twinpath_rma_failovers_total" + process + "4\n") != std::string::npos);
  CHECK(text.find("twinpath_rma_failover_seconds_total" + process + "1.5\n") != std::string::npos);
  CHECK(text.find("twinpath_rma_failover_longest_seconds" + process + "1\n") != std::string::npos);
  const nlohmann::json json = summary_json(s);
  CHECK(json["gin"][0]["failovers"] == 3);
  CHECK(json["gin"][0]["longest_stop_s"] == 0.25);
  CHECK(json["processes"][0]["rma"] ==
        nlohmann::json{{"failovers", 4}, {"stopped_s", 1.5}, {"longest_stop_s", 1.0}});
  const std::vector<std::string> lines = shown(s);
  CHECK(std::count(lines.begin(), lines.end(),
                   "RMA of here pid 0: 4 failovers, the longest 1.0 s") == 1);
}

TEST_CASE("Series of a process are bounded, and what is left out is added up") {
  ProcessSample p = process("a\"\\\n", 1);
  for (std::uint32_t i = 0; i < 100; ++i) {
    ConnectionSample c = connection(Role::sender, "b", i);
    c.key = i;
    c.messages = 1;
    c.waited_ns[0] = i * 1'000'000;
    p.connections.push_back(c);
  }
  const std::string text =
      exposition({p}, {{"mlx5_0", "1", "out_of_sequence", NicTrouble::out_of_sequence, 4}});
  std::size_t series = 0;
  for (std::size_t at = 0; (at = text.find("\ntwinpath_messages_total{", at)) != std::string::npos;
       ++at)
    ++series;
  CHECK(series == kMostPeers + 1);
  CHECK(text.find("peer=\"b pid 99\"") != std::string::npos);
  CHECK(text.find("peer=\"b pid 67\"") == std::string::npos);
  CHECK(text.find("peer=\"other\",gpu=\"\",device=\"\",path=\"\",dir=\"send\"} 68\n") !=
        std::string::npos);
  CHECK(text.find("node=\"a\\\"\\\\ \"") != std::string::npos);
  CHECK(text.find("twinpath_nic_counter_total{node=\"n\",hca=\"mlx5_0\",port=\"1\","
                  "name=\"out_of_sequence\",kind=\"out_of_sequence\"} 4\n") != std::string::npos);
}

TEST_CASE("An answer waits for the whole request and refuses what is none") {
  const auto body = [](const std::string& path) {
    return path == "/metrics" ? std::string("x 1\n") : std::string();
  };
  CHECK(http_answer("GET /metrics HTTP/1.1\r\nHost: a\r\n", body).empty());
  const std::string good = http_answer("GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n", body);
  CHECK(good.rfind("HTTP/1.1 200 OK\r\n", 0) == 0);
  CHECK(good.find("Content-Length: 4\r\n") != std::string::npos);
  CHECK(good.substr(good.size() - 4) == "x 1\n");
  const auto status = [&](const std::string& request) {
    return http_answer(request, body).substr(9, 3);
  };
  CHECK(status("GET / HTTP/1.1\r\n\r\n") == "404");
  CHECK(status("POST /metrics HTTP/1.1\r\n\r\n") == "405");
  CHECK(status("GET\r\n\r\n") == "400");
  CHECK(status("\r\n\r\n") == "400");
  CHECK(status(std::string(kMostRequest + 1, 'x')) == "431");
}

TEST_CASE("Who asks is answered, whatever others do that are silent, slow or without end") {
  std::string why;
  const auto server = HttpServer::open("127.0.0.1:0", why);
  REQUIRE(server != nullptr);
  int bodies = 0;
  const auto body = [&](const std::string&) {
    ++bodies;
    return std::string(8 << 20, 'x');
  };
  std::vector<UniqueFd> silent, slow;
  for (std::size_t i = 0; i < 3 * kMostCallers; ++i) {
    silent.push_back(caller_of(server->address()));
    server->serve(0, body);
  }
  CHECK(server->callers() == kMostCallers);
  // Nobody of these takes his answer; the memory for them has an end.
  for (int i = 0; i < 12; ++i) {
    slow.push_back(caller_of(server->address(), "GET /slow HTTP/1.1\r\n\r\n"));
    server->serve(0, body);
  }
  const UniqueFd endless(caller_of(server->address(), std::string(2 * kMostRequest, 'x')));
  const UniqueFd asks(caller_of(server->address(), "GET /metrics HTTP/1.1\r\n\r\n"));
  const UniqueFd beside(caller_of(server->address(), "GET /metrics?a=b HTTP/1.0\r\n\r\n"));
  std::size_t got = 0, got_beside = 0;
  bodies = 0;
  const std::int64_t end = now_ns() + 60 * kSecond;
  while ((got < (8u << 20) || got_beside < (8u << 20)) && now_ns() < end) {
    server->serve(10, body);
    got += taken(asks);
    got_beside += taken(beside);
  }
  CHECK(got > (8u << 20));
  CHECK(got_beside > (8u << 20));
  CHECK(bodies == 1);  // two that ask at once, each in his way
  CHECK(server->callers() <= kMostCallers);
  std::size_t kept = 0;  // of the slow
  for (const UniqueFd& s : slow) kept += still_open(s);
  CHECK(kept > 0);
  CHECK(kept <= kMostReplyBytes / (8u << 20));
}

TEST_CASE("A process is read once, however often its page is open, and each user has a budget") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  std::vector<ConnectionCounts> open;
  for (std::uint32_t i = 0; i < 5; ++i) open.push_back(page->open(numbered(i)));
  std::vector<UniqueFd> again;
  for (int i = 0; i < 50; ++i) again.emplace_back(::dup(page->fd()));
  // A page of this size and name without counters, and a file that was put where one was.
  const auto none =
      SharedMemory::create_sparse(counters::kMemoryName, counters::kPageBytes, Writers::creator);
  REQUIRE(none);
  std::vector<std::string> notes;
  std::vector<ProcessSample> seen;
  const auto look = [&](const LookLimits& limits) {
    notes.clear();
    seen.clear();
    read_processes(
        ::getpid(), notes, [&](ProcessSample p) { seen.push_back(std::move(p)); }, limits);
  };
  look({});
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].connections.size() == 5);
  CHECK(seen[0].pid == ::getpid());
  CHECK(seen[0].uid == ::geteuid());
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("it has no counters in it") != std::string::npos);
  for (const LookLimits& limits :
       {LookLimits{.connections = 4}, LookLimits{.processes = 0}, LookLimits{.descriptors = 3},
        LookLimits{.process_descriptors = 3}}) {
    look(limits);
    CHECK(seen.empty());
    REQUIRE_FALSE(notes.empty());
    CHECK(notes[0].find("is left out: ") != std::string::npos);
  }
  const auto other = CounterPage::create("here", "test", {});
  REQUIRE(other != nullptr);
  // Places that stay in the midst of a change give nothing, and cost more than others.
  for (std::uint32_t i = 0; i < 5; ++i) {
    open.push_back(other->open(numbered(i)));
    for (const ConnectionCounts* c : {&open[i], &open.back()}) c->get()->sequence.store(1);
  }
  look({.connections = 9});
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].connections.empty());
  look({.process_pages = 2});
  CHECK(seen.size() == 1);
  CHECK(notes.front().find("too many pages") != std::string::npos);
}

TEST_CASE("A process counts to who started it, even if its program is set to be root's") {
  CHECK(user_of(::getpid()) == ::getuid());
  NEEDS(::getuid() == 0, "only root looks at other users' processes");
  constexpr uid_t kOther = 61'234;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const char byte = ::setresuid(kOther, 0, 0) == 0 ? 1 : 0;
    (void)!::write(ready[1], &byte, 1);
    for (;;) ::pause();
  }
  char set = 0;
  CHECK(::read(ready[0], &set, 1) == 1);
  struct stat folder {};
  CHECK(::stat(("/proc/" + std::to_string(child)).c_str(), &folder) == 0);
  const std::optional<unsigned> user = user_of(child);
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
  for (const int end : ready) (void)::close(end);
  CHECK(set == 1);
  CHECK(folder.st_uid == 0);
  CHECK(user == kOther);
  CHECK_FALSE(user_of(child));
}

}  // namespace twinpath::tools
