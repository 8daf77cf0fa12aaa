#pragma once
// A connection outlives its queues: when one of them fails, or its port goes down or comes back,
// both ends stop, agree on which queues can be used, replace all, and go on.
//
// The rule.  No byte is written to a buffer that may have been given back to its owner.  So nothing
// is sent again before the receiver has halted its old queues and taken from its CQ what they had
// brought, and before the sender has halted its own: then no old write can arrive any more, and
// what the receiver says it awaits is the truth.  The sender sends again exactly that; of
// everything else the receiver has all bytes, whatever the sender's adapter has said.
//
//   whole     -> stopping   something failed here, or the peer says stop (failover.h in wire/)
//   stopping  -> flushing   both have said stop; the union of what each cannot use is left out
//   flushing  -> meeting    own queues halted, their completions taken, new queues made
//   meeting   -> raising    the peer has fenced, too: raise the queues to its addresses
//   raising   -> whole      the peer can receive: the comm goes on
//   any       -> holding    no queue can be used: wait for a port, no longer than the hold time
//   any       -> stopping   a failure within a round begins the next one
//
// An adapter that failed can confirm nothing.  Its queues count as halted once the kernel has taken
// it away (AsyncEvents::taken_away); until then both ends wait, no longer than the hold time.  Nor
// does a CQ that failed, whose queues are destroyed at once (QueueSet::leave_engine).
//
// Queues in reserve (wire/paths.h) count as queues that are out of use while any other can be used;
// then the best of them serves, alone.
//
// Who makes progress: whoever polls the session, the session's thread, for which this is
// held work while it runs, and which the peer's word wakes while the end is idle.
//
// Threads: all under the hub's lock.
#include <array>
#include <cstdint>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "proxy/connect/failover_round.h"
#include "proxy/connect/peer_questions.h"
#include "proxy/connect/queue_health.h"
#include "proxy/connect/stop_clock.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/queues/queue_set.h"
#include "proxy/wire/failover.h"

namespace twinpath {

class PeerLink;

// What a comm has posted that no completion has told to have arrived.
struct AtRisk {
  bool any = false;
  std::uint64_t mark = 0;   // another number after more was posted
  std::uint64_t bytes = 0;  // which take their time
};

// The comm, to the failover of its connection.
class FailoverComm {
 public:
  virtual AtRisk at_risk() = 0;
  // Whether everything that the halted queues will ever bring has been taken from the CQ: nothing
  // that counts, to a sender.  Queues in `gone` bring nothing more.
  virtual bool drained(QueueMask) { return true; }
  // After that: whether nobody reads any more what held() will forget and the peer will write
  // again.
  virtual bool settled() { return true; }
  // After both: what this end has.  What had arrived in part is as if nothing had.
  virtual HeldState held() = 0;
  // New queues are there, perhaps over ports that nothing was registered on.  Keys of the memory
  // that cells name go into `note`.
  virtual Status reach(FencedNote& note, std::string& why) = 0;
  // New queues are about to receive; their receives are posted.
  virtual void receives_posted() {}
  // Goes on over the queues in use.  How many messages were sent again; negative when what the peer
  // says makes no sense (the link is then broken).
  virtual int resume(const FencedNote& theirs) = 0;
  // Another number after something was achieved.
  virtual std::uint64_t progress() = 0;

 protected:
  ~FailoverComm() = default;
};

class Failover final : private HeldWork {
 public:
  explicit Failover(PeerLink& link) : link_(link) {}
  ~Failover();
  Failover(const Failover&) = delete;
  Failover& operator=(const Failover&) = delete;

  // From when the comm is there until it goes.
  void serve(FailoverComm* comm) { comm_ = comm; }
  bool ready() const { return comm_ != nullptr; }
  bool running() const { return phase_ != Phase::whole; }
  // Whether there is another way than over adapters that have failed, or it is being looked for.
  bool outlives_adapters(std::int64_t now);

  // A queue has failed by itself; `q` of no queue: they were halted for another connection.
  void queue_failed(int q, const std::string& why);
  // Whether ports went down or came back; to be called when one may have, and now and then.
  // `anew`: whether or not an adapter is known to have told of a change, which another connection
  // may be reading just now.
  void look_at_ports(std::int64_t now, bool anew = false);
  // While callers wait: whether a queue has stopped without a word.  Each queue in use is asked by
  // a write of no bytes; one that does not answer while another one does is given up.  Where none
  // does they are given up for one in reserve, if the peer's process answers on the control
  // connection meanwhile: what is silent otherwise may be an adapter that is software, in a process
  // that was stopped.
  void look_for_stalls(std::int64_t now);
  // For a while nobody may call here: the peer, whose callers wait, has asked to look for stalls.
  void look_after(std::int64_t now);
  bool looks_after(std::int64_t now) const { return peer_.looks(now); }
  // Asks those that have no question under way.
  void ask(std::int64_t now);
  void answered(int q);
  // A frame of the peer.  False when it is nonsense.
  bool hear(FailoverKind kind, std::span<const std::uint8_t> body);
  // Goes on as far as possible.
  void go_on(std::int64_t now);
  // When it wants to be called next; 0: not by the clock.
  std::int64_t next_look() const;

 private:
  enum class Phase : std::uint8_t { whole, stopping, flushing, meeting, raising, holding };
  struct Question {
    std::int64_t asked = 0;     // under way since then (ran_); 0: none
    std::int64_t answered = 0;  // the last time (ran_)
    std::uint64_t mark = 0;     // AtRisk::mark when it was asked
  };
  bool post_held(bool overdue) override;
  void begin(std::uint32_t round, const std::string& why);
  void try_again(std::int64_t now, QueueMask failed, const std::string& why);
  bool step(std::int64_t now);
  bool fence(std::int64_t now);
  bool drained(std::int64_t now);
  const Rail* awaited(std::int64_t now, QueueMask& gone);
  bool raise(std::int64_t now);
  void finish();
  void enter(Phase phase, std::int64_t now);
  QueueMask all() const;
  void wake_peer(std::int64_t now);
  void all_mute(QueueMask mute, std::int64_t limit);
  std::string mute_text(int q) const;
  std::string left_text(const Rail& rail) const;
  const Rail& rail_of(int q) const;
  const FailoverPace& pace() const;
  void look_at_states(std::int64_t now);
  QueueMask unusable(std::int64_t now) const;
  void mark_sick(int q, std::int64_t now);

  bool out_of_time() const;
  void give_up();
  void note_trouble(std::int64_t now, bool may_be_old);

  PeerLink& link_;
  FailoverComm* comm_ = nullptr;
  Phase phase_ = Phase::whole;
  FailoverRound round_;
  std::string why_;
  bool aloud_ = false;           // whoever was told of the stop is told of its end
  bool receives_posted_ = true;  // on the queues that are there
  StopClock clock_;              // since the beginning of the first of these rounds
  // What limits go by.  Looks come with every step of a round, and while callers wait.
  static constexpr std::int64_t kRunStep = 100 * kMillisecond;
  RunClock ran_{kRunStep};
  std::int64_t phase_since_ = 0;
  std::int64_t phase_ran_ = 0;    // ran_ at that time
  std::int64_t again_at_ = 0;     // holding: when to try the next round although nothing changed
  std::int64_t back_since_ = 0;   // a left-out queue can be used since then; 0: none can
  std::int64_t trouble_ran_ = 0;  // ran_ when the trouble began; 0: there was none
  std::uint64_t last_progress_ = 0;
  int failures_ = 0;  // rounds that failed in a row
  QueueHealth health_;
  PeerQuestions peer_;
  std::array<Question, kMaxQps> questions_{};
};

}  // namespace twinpath
