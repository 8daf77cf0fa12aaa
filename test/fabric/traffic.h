#pragma once
// Random traffic over one connection of which every byte is known: groups of receives, messages in
// random order of tags, sizes as a Mix says.  Both ends work out the same plan from its seed, so
// they may be in one thread, in two, or in two processes.
//
// What goes wrong is kept as text, not asserted: assertions belong to the test's own thread.
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plugin/base/limits.h"
#include "plugin/transport.h"

namespace twinpath::test {

struct Mix {
  std::uint64_t seed = 1;
  std::uint64_t groups = 100;
  int most_in_group = kMaxRecvs;
  bool in_order = false;     // messages leave in the order of their receives
  std::size_t usual = 64;    // most bytes of most messages
  std::size_t large = 4096;  // most bytes of the others,
  int large_one_in = 16;     // which are one of so many
  int optional_one_in = 0;   // single receives without completion; 0: none
  std::uint64_t optional_until = ~std::uint64_t{0};  // and none from this group on
  int flushed_one_in = 0;  // receives that are flushed before anybody looks; 0: none
  // Each receive and each send has memory of its own; before one use in so many it is given back,
  // unmapped, and new.  0: one registration for all of an end.
  int renewed_one_in = 0;
  std::size_t groups_open = kMaxRequests;
  // Sizes to be used alone in place of all that.
  std::vector<std::size_t> sizes;

  std::size_t most_bytes() const;
};

inline constexpr std::size_t kTrafficTags = 12;

struct Planned {
  int tag = 0;
  std::size_t bytes = 0, capacity = 0;
};
struct PlannedGroup {
  std::array<Planned, kMaxRecvs> messages;
  std::size_t count = 0;
  bool optional = false;
};
PlannedGroup plan_group(const Mix& mix, std::uint64_t number);

// The bytes of message `number` (8 * group + place): a pattern of number, tag and size.
void fill_message(std::uint8_t* data, std::uint64_t number, int tag, std::size_t bytes);
// Where it differs first; `bytes` when nowhere.
std::size_t differs_at(const std::uint8_t* data, std::uint64_t number, int tag, std::size_t bytes);

// Which messages' sends are done, for the receiver of optional ones: nothing else tells it.
class SentMarks {
 public:
  void set(std::uint64_t number) {
    marks_[number % marks_.size()].store(number + 1, std::memory_order_release);
  }
  bool has(std::uint64_t number) const {
    return marks_[number % marks_.size()].load(std::memory_order_acquire) == number + 1;
  }

 private:
  std::array<std::atomic<std::uint64_t>, 4096> marks_{};
};

// Memory of pages of its own, which can become something else's or nobody's.
class OwnPages {
 public:
  explicit OwnPages(std::size_t bytes);
  ~OwnPages();
  OwnPages(const OwnPages&) = delete;
  OwnPages& operator=(const OwnPages&) = delete;
  std::uint8_t* data() { return data_; }
  std::size_t size() const { return bytes_; }
  // Who touches it from now on is a fault (`unmap`), or is seen by untouched().
  void become_others(bool unmap);
  bool untouched() const;

 private:
  const std::size_t bytes_;
  std::uint8_t* data_ = nullptr;
  bool others_ = false;  // and there to be read
};

// Of one comm's end.
class TrafficEnd {
 public:
  // Does a little of everything and never waits.
  virtual void step() = 0;
  virtual bool done() const = 0;
  // The connection is lost: tests once whatever is under way; true when all of it has ended or has
  // failed.  No step follows.
  bool settle();
  // For the message when nothing moves.
  virtual std::string state() const = 0;
  // `slots` of messages, `together` of them in one memory where that is renewed.
  TrafficEnd(Comm& comm, const Mix& mix, std::size_t slots, std::size_t together);
  virtual ~TrafficEnd();
  TrafficEnd(const TrafficEnd&) = delete;
  TrafficEnd& operator=(const TrafficEnd&) = delete;
  const std::string& failure() const { return failure_; }
  // The failure is that a call gave an error: the connection is lost, and nothing else is wrong.
  bool lost() const { return lost_; }
  // Messages taken from the plan and ended: grows while anything goes on.
  std::uint64_t ended() const { return ended_; }
  // An abort: its memory is given back through that comm of the device, and freed.  No step
  // follows.
  void take_memory(Comm& through, bool unmap);
  // All of its memory, where that is one piece until take_memory(); null where it is renewed.
  OwnPages* lasting() const {
    return mix_.renewed_one_in == 0 ? pieces_.front().pages.get() : nullptr;
  }
  // After take_memory(): whether nobody has written there.
  bool untouched() const;

 protected:
  // Room for a message; where it begins is as odd as its number.
  std::uint8_t* room(std::size_t slot, std::uint64_t number) {
    return piece(slot).pages->data() + slot % together_ * stride_ + number % 8;
  }
  Memory* registered(std::size_t slot) { return piece(slot).registered; }
  // Nobody uses it: it may become new.
  void renew(std::size_t slot);
  void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
  // A call that gave an error.
  void lose(const char* call, std::uint64_t number, Status status);
  virtual bool settle_all() = 0;
  std::size_t random(std::size_t below) { return random_() % below; }

  const Mix mix_;
  std::uint64_t ended_ = 0;

 private:
  struct Piece {
    std::unique_ptr<OwnPages> pages;
    Memory* registered = nullptr;
  };
  Piece& piece(std::size_t slot) { return pieces_[slot / together_]; }
  void make(Piece& piece);
  bool give_back(Piece& piece, Comm& through);

  Comm& comm_;
  const std::size_t stride_, together_;
  std::vector<Piece> pieces_;
  std::minstd_rand random_;
  std::string failure_;
  bool lost_ = false;
};

class TrafficReceiver : public TrafficEnd {
 public:
  // `marks`: needed for optional receives only.
  TrafficReceiver(RecvComm& comm, const Mix& mix, const SentMarks* marks = nullptr);
  void step() override;
  bool done() const override { return next_ == mix_.groups && open_.empty(); }
  std::string state() const override;

 private:
  bool settle_all() override;
  struct Open {
    std::uint64_t number;
    Request* request;  // null: done, and waits for the send
    std::size_t place;
    bool flush = false;  // what the request is
  };
  bool post();
  void look_at(std::size_t i);
  bool take(Open& open, const PlannedGroup& group, const Completion& c);
  Request* flush(const PlannedGroup& group, const Open& open);
  bool sent(const PlannedGroup& group, std::uint64_t number) const;
  void check(const PlannedGroup& group, std::uint64_t number, std::size_t place, const char* when);

  RecvComm& comm_;
  const SentMarks* marks_;
  std::uint64_t next_ = 0;
  std::deque<Open> open_;
  std::vector<std::size_t> free_;
  // What was received into a place before, plus 1: it must still be there when that is used again.
  std::vector<std::uint64_t> former_;
};

class TrafficSender : public TrafficEnd {
 public:
  TrafficSender(SendComm& comm, const Mix& mix, SentMarks* marks = nullptr);
  void step() override;
  bool done() const override {
    return planned_ == mix_.groups && waiting_ == 0 && under_way_.empty();
  }
  std::string state() const override;

 private:
  bool settle_all() override;
  static constexpr std::size_t kSlots = 64, kPlanAhead = 300, kNone = ~std::size_t{0};
  struct Message {
    std::uint64_t number;
    Planned what;
    std::size_t slot;  // kNone until first tried
  };
  struct UnderWay {
    Request* request;
    std::uint64_t number;
    std::size_t bytes, slot;
  };
  bool send();
  void look_at(std::size_t i);

  SendComm& comm_;
  SentMarks* marks_;
  std::uint64_t planned_ = 0;
  std::size_t waiting_ = 0;
  std::array<std::deque<Message>, kTrafficTags> by_tag_;
  std::vector<UnderWay> under_way_;
  std::vector<std::size_t> free_;
};

// Steps them all until they are done.  Empty, or what went wrong: also that nothing moved for long.
std::string drive(const std::vector<TrafficEnd*>& ends);
// The two lists in two threads.
std::string drive(const std::vector<TrafficEnd*>& ends, const std::vector<TrafficEnd*>& others);

// One end of a connection, and the comm that it is.
struct Doomed {
  TrafficEnd* end;
  Comm* comm;
  std::function<void()> close;
};
// What a rank does that aborts: after so many steps at most it gives memory back and frees it, one
// end after the other, and closes comms, while those that are left go on.  A registration may be
// given back through any comm of the device.
void abort_rank(std::vector<Doomed> ends, std::uint64_t seed, std::size_t steps);

// The ends of one connection in one process.
struct Traffic {
  Traffic(SendComm& send, RecvComm& recv, const Mix& mix)
      : sender(send, mix, &marks), receiver(recv, mix, &marks) {}
  SentMarks marks;
  TrafficSender sender;
  TrafficReceiver receiver;
};

}  // namespace twinpath::test
