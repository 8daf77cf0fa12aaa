#include "test/abi/random_rank.h"

#include <thread>

namespace twinpath::test {

RandomRank::RandomRank(AnyNet& net, const World& world, const Scene& scene, int side, int peer,
                       SentMarks* marks)
    : RandomSide(scene, side, peer, world.may_lose),
      net_(net),
      world_(world),
      scene_(scene),
      marks_(marks),
      random_(static_cast<unsigned>(scene.mixes[0].seed) + static_cast<unsigned>(side)) {}

int RandomRank::device() {
  int devices = 0;
  must(net_.devices(&devices), "devices");
  must(devices >= world_.ports, "devices are missing");
  int device = static_cast<int>(random_() % static_cast<unsigned>(world_.ports));
  if (world_.merged && net_.has_make_vdevice())
    must(net_.make_vdevice(&device, {0, 1}), "makeVDevice");
  return device;
}

void RandomRank::add(void* send, void* recv, std::size_t mix) {
  Connection& c = connections_.emplace_back();
  if (send != nullptr) {
    c.send = std::make_unique<NetSend>(net_, send);
    c.end = std::make_unique<TrafficSender>(*c.send, scene_.mixes[mix], &marks_[mix]);
  } else {
    c.recv = std::make_unique<NetRecv>(net_, recv);
    c.end = std::make_unique<TrafficReceiver>(*c.recv, scene_.mixes[mix], &marks_[mix]);
  }
}

// False: there is no connection, because this rank leaves or the other one has.
bool RandomRank::connect(void* ctx) {
  const auto count = static_cast<std::size_t>(scene_.connections);
  const int dev = device();
  hint(ctx);
  std::vector<void*> listeners(count), sends(count), recvs(count);
  std::vector<Handle> mine(count), theirs(count);
  for (std::size_t i = 0; i < count; ++i)
    must(net_.listen(ctx, dev, mine[i].data(), &listeners[i]), "listen");
  for (const Handle& h : mine) say_handle(h);
  for (Handle& h : theirs) (void)hear_handle(h);
  std::size_t missing = 2 * count;
  while (missing > 0 && peer_ != Peer::gone && !time_to_leave()) {
    missing = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bool made = true;
      if (sends[i] == nullptr)
        made = net_.connect(ctx, dev, theirs[i].data(), &sends[i], -1) == abi::ncclSuccess;
      if (recvs[i] == nullptr)
        made = net_.accept(listeners[i], &recvs[i]) == abi::ncclSuccess && made;
      if (!made && !may_lose_) note("connect or accept");
      if (!made) leave_ = true;
      missing += (sends[i] == nullptr ? 1 : 0) + (recvs[i] == nullptr ? 1 : 0);
    }
    if (leave_) break;
    watch(0);
    must(clock_.look(now_ns()) < kStuck, "connecting does not end");
    std::this_thread::yield();
  }
  for (void* listener : listeners) must(net_.close_listen(listener), "closeListen");
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t out = 2 * i + static_cast<std::size_t>(side_), in = out ^ 1;
    if (sends[i] != nullptr) add(sends[i], nullptr, out);
    if (recvs[i] != nullptr) add(nullptr, recvs[i], in);
  }
  return missing == 0;
}

// True when it has ended.  Who has lost a connection, and whose others stand still, gives up as
// NCCL does, and so does whose other rank has gone: what is under way must end.  Nothing else
// might: of a receive without completion nobody tells that no message will come.
bool RandomRank::go_on(TrafficEnd& end, bool still) {
  if (end.lost()) lost_ = true;
  if (!end.failure().empty()) return !end.lost() || end.settle();
  if (peer_ == Peer::gone || (lost_ && still)) return end.settle();
  for (int i = 0; i < 8; ++i) end.step();
  return end.done();
}

void RandomRank::work(const std::vector<TrafficEnd*>& ends) {
  RunClock clock(kLook);
  std::uint64_t before = 0;
  std::int64_t moved = 0;
  std::vector<char> over(ends.size());
  while (!leave_) {
    std::uint64_t ended = 0;
    bool all = true;
    const bool still = clock.time() - moved > kSecond;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (over[i] == 0) over[i] = go_on(*ends[i], still) ? 1 : 0;
      ended += ends[i]->ended() + static_cast<std::uint64_t>(over[i]);
      all = all && over[i] != 0;
    }
    if (all) break;
    const std::int64_t now = clock.look(now_ns());
    if (ended != before) moved = now;
    before = ended;
    if (now - moved > kStuck) {
      std::string what = "nothing moves, and nothing fails";
      for (const TrafficEnd* end : ends) what += "; " + end->failure() + " " + end->state();
      return note(what);
    }
    std::this_thread::yield();
  }
}

// Of the operations to come; any number may be told.
void RandomRank::hint(void* ctx) {
  const auto some = [this] {
    const auto n = static_cast<std::int32_t>(random_() % 8);
    return n == 7 ? INT32_MAX : n == 6 ? -1 : n;
  };
  abi::ncclNetAttr_t attr{{some(), some(), some(), some()},
                          {some(), some(), some(), some()},
                          static_cast<std::uint32_t>(1u << random_() % 5),
                          ~0u,
                          ~0u};
  must(net_.set_net_attr(ctx, &attr), "setNetAttr");
}

// As NCCL's service thread does while the other moves data.
void RandomRank::register_some(void* ctx) {
  hint(ctx);
  Connection& at = connections_[random_() % connections_.size()];
  Connection& through = connections_[random_() % connections_.size()];
  OwnPages own(1 + random_() % 65536);
  // Sometimes what has a registration already, and messages under way.
  OwnPages* const lasting = random_() % 2 == 0 ? at.end->lasting() : nullptr;
  OwnPages& pages = lasting == nullptr ? own : *lasting;
  const std::size_t from = random_() % 2 == 0 ? 0 : random_() % pages.size();
  auto made =
      at.comm().register_memory(pages.data() + from, pages.size() - from, MemoryType::host, 0, -1);
  if (!made && !may_lose_) note(std::string("regMr beside traffic: ") + status_name(made.status()));
  if (made && through.comm().deregister_memory(*made) != Status::ok) note("deregMr beside traffic");
}

// In any order; what was given back must be left alone.
std::string RandomRank::close() {
  std::vector<Doomed> ends;
  for (Connection& c : connections_)
    ends.push_back({c.end.get(), &c.comm(), [&c] {
                      c.send.reset();
                      c.recv.reset();
                    }});
  abort_rank(std::move(ends), random_(), std::size_t{1} << (random_() % 6));
  for (const Connection& c : connections_) {
    if (!c.end->untouched()) return "memory was written after it had been given back";
    if (!c.end->failure().empty() && !(c.end->lost() && may_lose_)) return c.end->failure();
  }
  return {};
}

std::string RandomRank::play(LogSink log) {
  try {
    Communicator communicator(net_, log);
    connected_ = connect(communicator.ctx);
    std::vector<std::vector<TrafficEnd*>> shares;
    for (Connection& c : connections_) {
      if (shares.empty() || scene_.threads) shares.emplace_back();
      shares.back().push_back(c.end.get());
    }
    if (connected_) {
      in_threads(
          shares, [this](const std::vector<TrafficEnd*>& ends) { work(ends); },
          [&] { register_some(communicator.ctx); });
    }
    bool all = connected_ && !leave_ && wrong_.empty();
    for (const Connection& c : connections_) all = all && c.end->failure().empty();
    // Who has all of it closes nothing before the other one has, too.
    if (all) say_done();
    while (all && peer_ == Peer::there) watch(100);
    if (!connections_.empty()) note(close());
    if (!all) say_gone();
  } catch (const Failure& e) {
    note(e.what());
    say_gone();
  }
  while (peer_ == Peer::there) watch(100);
  return wrong_;
}

}  // namespace twinpath::test
