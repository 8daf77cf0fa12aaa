#pragma once
// The two ends of watched traffic (watched_traffic.h).  Each does a little of everything in a step
// and never waits, so that both may be in one thread or in two.
#include <deque>
#include <string>
#include <vector>

#include "test/fabric/landed.h"
#include "test/fabric/watched_traffic.h"

namespace twinpath::test {

class WatchedSender {
 public:
  WatchedSender(SendComm& comm, Course& course, WatchedMemory memory)
      : comm_(comm), course_(course), places_(comm, course, std::move(memory)) {}
  // A little of everything; never waits.
  void step() {
    if (!failure.empty()) return;
    if (next_ < course_.groups.load(std::memory_order_acquire) &&
        under_way_.size() < places_.count())
      begin();
    for (auto at = under_way_.begin(); at != under_way_.end();) {
      send(*at);
      test(*at);
      // Its place may be filled again once all of it has left.
      at = at->done == at->group.members ? finish(at) : at + 1;
    }
  }
  bool done() const {
    return next_ >= course_.groups.load(std::memory_order_acquire) && under_way_.empty();
  }
  std::string state() const {
    return "sender: " + std::to_string(next_) + " groups begun, " +
           std::to_string(under_way_.size()) + " under way";
  }
  std::string failure;

 private:
  struct UnderWay {
    std::uint64_t number;
    Group group;
    int sent = 0, done = 0;
    std::array<Request*, kMaxRecvs> requests{};
  };
  void begin() {
    // The place's last group may be under way still, behind others that are done.
    for (const UnderWay& u : under_way_)
      if (u.number % places_.count() == next_ % places_.count()) return;
    UnderWay u{next_, group_of(course_.plan, next_), 0, 0, {}};
    for (int i = 0; i < u.group.members; ++i)
      std::memcpy(places_.at(next_, i), course_.noise.of(next_ * kMaxRecvs + unsigned(i)),
                  u.group.bytes[static_cast<std::size_t>(i)]);
    under_way_.push_back(u);
    ++next_;
  }
  void send(UnderWay& u) {
    if (&u != &under_way_.front() && (&u)[-1].sent < (&u)[-1].group.members) return;  // in order
    while (u.sent < u.group.members) {
      const int i = course_.plan.reversed ? u.group.members - 1 - u.sent : u.sent;
      const auto at = static_cast<std::size_t>(i);
      const Status s = comm_.isend(places_.at(u.number, i), u.group.bytes[at], i,
                                   places_.memory(u.number), &u.requests[at]);
      if (s != Status::ok && s != Status::again) failure = std::string("isend: ") + status_name(s);
      if (u.requests[at] == nullptr) return;
      ++u.sent;
    }
  }
  void test(UnderWay& u) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(u.group.members); ++i) {
      if (u.requests[i] == nullptr) continue;
      Completion c;
      const Status s = u.requests[i]->test(c);
      if (s != Status::ok) {
        failure = std::string("test of a send: ") + status_name(s);
        return;
      }
      if (!c.done) continue;
      if (c.bytes[0] != u.group.bytes[i]) failure = "a send of another size";
      u.requests[i] = nullptr;
      ++u.done;
    }
  }
  std::vector<UnderWay>::iterator finish(std::vector<UnderWay>::iterator at) {
    course_.sent[at->number % course_.sent.size()].store(at->number + 1, std::memory_order_release);
    return under_way_.erase(at);
  }

  SendComm& comm_;
  Course& course_;
  WatchedPlaces places_;
  std::uint64_t next_ = 0;
  std::vector<UnderWay> under_way_;
};

class WatchedReceiver {
 public:
  WatchedReceiver(RecvComm& comm, Course& course, WatchedMemory memory)
      : comm_(comm),
        course_(course),
        gpu_(memory.type == MemoryType::cuda),
        places_(comm, course, std::move(memory)) {}
  void step() {
    if (!failure.empty()) return;
    if (next_ < course_.groups.load(std::memory_order_acquire) &&
        open_.size() < static_cast<std::size_t>(course_.plan.window))
      offer();
    while (!open_.empty() && failure.empty() && take(open_.front())) {
      open_.pop_front();
      course_.received.fetch_add(1, std::memory_order_release);
    }
  }
  bool done() const {
    return next_ >= course_.groups.load(std::memory_order_acquire) && open_.empty();
  }
  // At the end: nothing was written to any buffer after it was given back.
  void look_at_rest() {
    for (std::uint64_t n = 0; n < places_.count() && failure.empty(); ++n) rests(n);
  }
  std::string state() const {
    return "receiver: " + std::to_string(next_) + " groups offered, " +
           std::to_string(open_.size()) + " open";
  }
  std::string failure;

 private:
  struct Open {
    std::uint64_t number;
    Group group;
    Request* request;  // null: done
    Request* flush = nullptr;
    bool flushed = false;
  };
  std::size_t most() const { return course_.plan.most_bytes(); }
  bool rests(std::uint64_t number) {
    for (int i = 0; i < course_.plan.most_in_group; ++i)
      if (!course_.noise.is_paint(places_.at(number, i), most() + Noise::kMargin))
        failure = "the place of group " + std::to_string(number) + ", member " + std::to_string(i) +
                  " was written to while it rested";
    return failure.empty();
  }
  void offer() {
    if (!rests(next_)) return;
    Open o{next_, group_of(course_.plan, next_), nullptr};
    std::array<RecvBuffer, kMaxRecvs> buffers;
    for (int i = 0; i < o.group.members; ++i)
      // Every other group fills its buffers.
      buffers[static_cast<std::size_t>(i)] = {
          places_.at(next_, i),
          next_ % 2 == 0 ? o.group.bytes[static_cast<std::size_t>(i)] : most(), i,
          places_.memory(next_)};
    const auto all = std::span(buffers).first(static_cast<std::size_t>(o.group.members));
    const Status s = comm_.irecv(all, o.group.optional, &o.request);
    if (s != Status::ok && s != Status::again) failure = std::string("irecv: ") + status_name(s);
    if (o.request == nullptr) return;
    open_.push_back(o);
    course_.offered.store(++next_, std::memory_order_release);
  }
  // Whether it has all of it.
  bool take(Open& o) {
    Completion c;
    if (o.request != nullptr) {
      const Status s = o.request->test(c);
      if (s != Status::ok) failure = std::string("test of a receive: ") + status_name(s);
      if (!c.done || !failure.empty()) return false;
      o.request = nullptr;
      for (int i = 0; i < o.group.members && !o.group.optional; ++i)
        if (const auto at = static_cast<std::size_t>(i); c.bytes[at] != o.group.bytes[at])
          failure = which(o, i) + " has " + std::to_string(c.bytes[at]) + " bytes of " +
                    std::to_string(o.group.bytes[at]);
    }
    // Nothing else tells that an optional one has arrived.
    if (o.group.optional && course_.sent[o.number % course_.sent.size()].load(
                                std::memory_order_acquire) != o.number + 1)
      return false;
    if (gpu_ && !o.group.optional && !flush(o)) return false;
    if (gpu_) see_what_has_landed();
    for (int i = 0; i < o.group.members; ++i) check(o, i);
    return failure.empty();
  }
  bool flush(Open& o) {
    Completion c;
    if (!o.flushed && o.flush == nullptr) {
      std::array<RecvBuffer, kMaxRecvs> buffers;
      std::size_t n = 0;
      for (int i = 0; i < o.group.members; ++i)
        if (const std::size_t bytes = o.group.bytes[static_cast<std::size_t>(i)]; bytes != 0)
          buffers[n++] = {places_.at(o.number, i), bytes, i, places_.memory(o.number)};
      if (n != 0 && comm_.iflush(std::span(buffers).first(n), &o.flush) != Status::ok)
        failure = "iflush fails";
      o.flushed = o.flush == nullptr;  // as NCCL: there is nothing to wait for
    }
    if (o.flush != nullptr) {
      if (o.flush->test(c) != Status::ok) failure = "a flush fails";
      if (!c.done) return false;
      o.flush = nullptr;
      o.flushed = true;
    }
    return o.flushed;
  }
  void check(const Open& o, int i) {
    std::uint8_t* const data = places_.at(o.number, i);
    const std::size_t bytes = o.group.bytes[static_cast<std::size_t>(i)];
    if (std::memcmp(data, course_.noise.of(o.number * kMaxRecvs + unsigned(i)), bytes) != 0)
      failure = which(o, i) + " has wrong bytes";
    if (!course_.noise.is_paint(data + bytes, most() + Noise::kMargin - bytes))
      failure = which(o, i) + " was written beyond its end";
    std::memset(data, Noise::kPaint, bytes);
  }
  static std::string which(const Open& o, int i) {
    return "group " + std::to_string(o.number) + ", member " + std::to_string(i) +
           (o.group.optional ? ", optional," : "");
  }

  RecvComm& comm_;
  Course& course_;
  const bool gpu_;
  WatchedPlaces places_;
  std::uint64_t next_ = 0;
  std::deque<Open> open_;
};

}  // namespace twinpath::test
