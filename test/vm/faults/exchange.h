#pragma once
// Two ends in two processes, and the parent that watches them.  One of them may be on the other
// host; here it is a process that passes on what it does (remote_end.h).
//
// The parent opens no adapter, so forking is harmless.  Waits end at their limit and never later;
// the destructor leaves no process behind.  Threads: one.
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "test/vm/faults/end.h"

namespace twinpath::test {

class Exchange {
 public:
  Exchange(const EndPlan& sender, const EndPlan& receiver, std::vector<std::size_t> sizes);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  EndState& end(Side s) { return shared_->end(s); }
  Phase phase(Side s) { return end(s).phase.load(); }
  std::uint64_t messages() { return end(Side::receiver).messages.load(); }
  int pid(Side s) { return end(s).pid.load(); }  // 0 until it runs
  void signal(Side s, int number);
  bool handle_ready() const { return shared_->handle_ready.load(); }

  // False at the limit, and at once when an end can no more get there.
  bool wait_connected(int limit_ms);
  bool wait_messages(std::uint64_t count, int limit_ms);
  bool wait_ended(Side s, int limit_ms);
  // The sender starts no more messages, until told otherwise.
  void pause(bool on) { shared_->pause.store(on); }
  // Lets the sender send its last message and waits until both ends are done.
  bool finish(int limit_ms);

  // The same processes connect again, with the fabric that they have open.  False at the limit.
  bool reconnect(int limit_ms);

  // All warnings of an end, one a line; and the one about the connection (or the last one).
  std::string warnings(Side s);
  std::string reason(Side s);
  // How an end stands, for messages of failed cases.
  std::string describe(Side s);

 private:
  bool wait(int limit_ms, const std::function<bool()>& done, bool stop_when_ended);
  void leave();

  Shared* shared_;
  std::array<EndPlan, 2> plans_;
  std::vector<std::size_t> sizes_;
  std::array<pid_t, 2> pids_{-1, -1};
};

}  // namespace twinpath::test
