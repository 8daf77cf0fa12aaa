#include "tools/counters/view.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "plugin/base/clock.h"

namespace twinpath::tools {

using counters::CommunicatorState;
using counters::Count;

namespace {

// Printable text up to the first 0.
template <std::size_t N>
std::string text_of(const counters::Name<N>& name) {
  std::string out;
  for (const char c : name) {
    if (c == 0) break;
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

// What all layouts begin with.
constexpr std::size_t kFixedBytes = offsetof(counters::Process, pid);

// Copies what is under a place's sequence, of which it gives the number; none while it changes.
// A change takes nanoseconds; who died within keeps it odd.
template <class Place, class Copy>
std::optional<std::uint32_t> read_settled(const Place& place, Copy&& copy) {
  for (int tries = 0; tries < 1000; ++tries) {
    const std::uint32_t before = place.sequence.load(std::memory_order_acquire);
    if ((before & 1) != 0) continue;
    copy();
    // What was read is read before the sequence is looked at again.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (place.sequence.load(std::memory_order_relaxed) == before) return before;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t ConnectionSample::bytes() const {
  return std::accumulate(rails.begin(), rails.end(), std::uint64_t{0},
                         [](std::uint64_t n, const RailSample& r) { return n + r.bytes; });
}

std::uint64_t ConnectionSample::waited() const {
  return std::accumulate(waited_ns.begin(), waited_ns.end(), std::uint64_t{0});
}

MoveSample::MoveSample(const counters::MoveCounts& of)
    : moves(of.moves.load(std::memory_order_relaxed)),
      stopped_ns(of.stopped_ns.load(std::memory_order_relaxed)),
      longest_ns(of.longest_ns.load(std::memory_order_relaxed)) {}

std::unique_ptr<CounterView> CounterView::of_memory(int fd, std::string& why) {
  std::unique_ptr<CounterView> view(new CounterView);
  // Another layout's page may be shorter.
  for (const std::size_t bytes : {kFixedBytes, counters::kPageBytes}) {
    auto memory = SharedMemory::map(fd, bytes, Writers::creator, why);
    if (!memory) return nullptr;
    view->memory_ = std::move(memory).take();
    view->at_ = view->memory_.as<const std::byte>();
    view->bytes_ = bytes;
    if (!view->check(why)) return nullptr;
  }
  return view;
}

std::unique_ptr<CounterView> CounterView::of_file(const std::string& path, std::string& why) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0) {
    why = std::strerror(errno);
    return nullptr;
  }
  if (!S_ISREG(st.st_mode) || st.st_size < static_cast<off_t>(kFixedBytes) ||
      st.st_size > static_cast<off_t>(counters::kPageBytes)) {
    why = "it is no copy of a process's counters";
    return nullptr;
  }
  std::unique_ptr<CounterView> view(new CounterView);
  view->bytes_ = static_cast<std::size_t>(st.st_size);
  view->copy_.resize((view->bytes_ + 7) / 8);
  auto* to = reinterpret_cast<std::byte*>(view->copy_.data());
  for (std::size_t got = 0; got < view->bytes_;) {
    const ssize_t n = ::read(fd.get(), to + got, view->bytes_ - got);
    if (n <= 0) {
      why = n < 0 ? std::strerror(errno) : "it ends too early";
      return nullptr;
    }
    got += static_cast<std::size_t>(n);
  }
  view->at_ = to;
  if (!view->check(why)) return nullptr;
  if (view->bytes_ >= counters::kConnectionsAt) return view;
  why = "it ends too early";
  return nullptr;
}

bool CounterView::check(std::string& why) {
  const counters::Process& p = process();
  // Partner of the release in CounterPage::create.
  auto& magic = const_cast<std::uint64_t&>(p.magic);
  if (std::atomic_ref<std::uint64_t>(magic).load(std::memory_order_acquire) != counters::kMagic) {
    why = "it has no counters in it";
    return false;
  }
  if (p.version != counters::kVersion || p.connection_bytes != sizeof(counters::Connection) ||
      p.connections_at != counters::kConnectionsAt || p.capacity != counters::kMaxConnections) {
    why = "its counters have layout " + std::to_string(p.version) + ", this program knows " +
          std::to_string(counters::kVersion) + "; take the one that came with that plugin";
    return false;
  }
  return true;
}

bool CounterView::read(std::uint32_t index, const std::vector<PortSample>& ports,
                       ConnectionSample& out) const {
  const auto& c = *reinterpret_cast<const counters::Connection*>(
      at_ + counters::kConnectionsAt + std::size_t{index} * sizeof(counters::Connection));
  counters::Identity id;
  const auto settled = read_settled(c, [&] {
    std::memcpy(&id, &c.identity, sizeof id);
    std::uint64_t earlier;
    std::memcpy(&earlier, &c.messages_before, sizeof earlier);
    out.messages = earlier + c.messages();
  });
  if (!settled) return false;
  out.key = std::uint64_t{index} << 32 | *settled;
  const std::uint32_t state = c.state.get();
  if (state == 0 || state > static_cast<std::uint32_t>(counters::State::closed)) return false;
  out.state = static_cast<counters::State>(state);
  out.role =
      id.role == counters::Role::receiver ? counters::Role::receiver : counters::Role::sender;
  out.peer_host = text_of(id.peer_host);
  out.peer_device = text_of(id.peer_device);
  out.peer_gpu = text_of(id.peer_gpu);
  out.device = text_of(id.device);
  out.gpu = text_of(id.gpu);
  out.path = text_of(id.path);
  out.reason = text_of(id.reason);
  out.peer_pid = id.peer_pid;
  out.communicator = id.communicator;
  out.session = id.session;
  out.staged_bytes = c.staged_bytes.get();
  out.failovers = c.failovers.get();
  out.stopped_ns = c.stopped_ns.get();
  out.longest_stop_ns = c.longest_stop_ns.get();
  out.looked_at = c.looked_at.get();
  out.since = c.since.get();
  out.in_flight = c.in_flight.get();
  if (const std::uint32_t wait = c.waits_for.get(); out.looked_at != 0 && wait < counters::kWaits)
    out.waits_for = static_cast<counters::Wait>(wait);
  for (std::size_t i = 0; i < counters::kWaits; ++i) out.waited_ns[i] = c.waited_ns[i].get();
  for (std::size_t i = 0; i < counters::kStatuses; ++i) out.errors[i] = c.errors[i].get();
  for (std::size_t r = 0; r < std::min<std::size_t>(id.rails, kMaxRails); ++r) {
    const counters::Rail& rail = c.rails[r];
    const bool standby = r + id.standby >= id.rails;
    if (standby && rail.bytes.get() == 0) continue;
    RailSample& to = out.rails.emplace_back();
    if (id.ports[r] < ports.size()) to.port = ports[id.ports[r]].name;
    to.standby = standby;
    to.bytes = rail.bytes.get();
    to.timed_ns = rail.timed_ns.get();
    to.permille = std::min(rail.permille.get(), 1000u);
    for (std::size_t b = 0; b < counters::kBuckets; ++b) to.buckets[b] = rail.buckets[b].get();
  }
  return true;
}

std::vector<CommunicatorSample> CounterView::communicators() const {
  const counters::Process& p = process();
  std::vector<CommunicatorSample> out;
  const std::size_t used = std::min<std::size_t>(
      p.communicators_used.load(std::memory_order_acquire), p.communicators.size());
  for (std::size_t i = 0; i < used; ++i) {
    const counters::Communicator& c = p.communicators[i];
    counters::CommunicatorIdentity id;
    std::uint32_t state = 0;
    const auto settled = read_settled(c, [&] {
      std::memcpy(&id, &c.identity, sizeof id);
      state = c.state.get();
    });
    if (!settled || state == 0 || state > static_cast<std::uint32_t>(CommunicatorState::ended))
      continue;
    CommunicatorSample& sample = out.emplace_back();
    sample.id = id.id;
    sample.session = id.session;
    sample.name = text_of(id.name);
    if (id.rank < id.ranks) {
      sample.rank = id.rank;
      sample.ranks = id.ranks;
    }
    sample.nodes = id.nodes;
    sample.ended = state == static_cast<std::uint32_t>(CommunicatorState::ended);
  }
  return out;
}

std::size_t CounterView::places() const {
  const std::size_t room = (bytes_ - counters::kConnectionsAt) / sizeof(counters::Connection);
  // Partner of the release in CounterPage::open: connections before it were filled in, and their
  // memory is reserved.
  return std::min<std::size_t>(process().used.load(std::memory_order_acquire), room);
}

ProcessSample CounterView::read() const {
  const counters::Process& p = process();
  ProcessSample out;
  out.inner_pid = static_cast<int>(p.pid);
  out.host = text_of(p.host);
  out.plugin = text_of(p.plugin);
  out.started_at = p.started_ns;
  out.started_unix_ns = p.started_unix_ns;
  out.taken_at = p.copied_at.get() != 0 ? p.copied_at.get() : now_ns();
  out.uncounted = p.uncounted.get();
  out.registrations = p.memory.registrations.load(std::memory_order_relaxed);
  out.registered_bytes = p.memory.registered_bytes.load(std::memory_order_relaxed);
  out.registration_hits = p.memory.hits.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < std::min<std::size_t>(p.ports_used.get(), p.ports.size()); ++i) {
    const counters::PortCounts& port = p.ports[i];
    const std::uint32_t state = port.state.get();
    out.ports.push_back(
        {text_of(port.name), text_of(port.device), port.number, port.speed_mbps,
         state <= 2 ? static_cast<counters::PortState>(state) : counters::PortState::unknown,
         port.went_down.get(), port.came_up.get(), port.changed_address.get(), port.failed.get()});
  }
  const std::size_t used = places();
  for (std::uint32_t i = 0; i < used; ++i) {
    ConnectionSample c;
    if (read(i, out.ports, c)) out.connections.push_back(std::move(c));
  }
  const std::size_t engines =
      std::min<std::size_t>(p.gin_used.load(std::memory_order_acquire), p.gin.size());
  for (std::size_t i = 0; i < engines; ++i) {
    const counters::GinCounts& g = p.gin[i];
    GinSample& to = out.gin.emplace_back();
    to.gpu = g.gpu;
    to.since = g.since_ns;
    to.doorbells = g.doorbells.get();
    to.busy_ns = g.busy_ns.get();
    to.failed_queues = g.failed_queues.get();
    to.released = g.released.get();
    to.moves = MoveSample(g.moves);
    for (std::size_t k = 0; k < counters::kGinOperations; ++k)
      to.operations[k] = g.operations[k].get();
  }
  out.rma = MoveSample(p.rma);
  // Behind the connections: a communicator has its name before it has any.
  out.communicators = communicators();
  out.unnamed = p.unnamed.get();
  for (ConnectionSample& c : out.connections)
    c.member = membership(out.communicators, c.communicator, c.session);
  return out;
}

}  // namespace twinpath::tools
