#pragma once
// A transport that only notes what it is asked and answers what it is told.  It stands in for
// the fabric and the proxy at link time (open_transports), so that the tables
// can be tested for what they pass on and what they make of each Status.
//
// Threads: one.
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/counter_page.h"
#include "plugin/transport.h"

namespace twinpath::test {

struct FakeState {
  // told
  Status open_fabric = Status::ok;
  Status answer = Status::ok;  // of every call on comms, listeners and sessions
  bool throws = false;         // instead of answering
  int throw_kind = 0;  // 0: bad_alloc, 1: runtime_error, 2: an int, 3, 4: no thread (4: refused)
  bool null_request = false;  // ok without a request (iflush: nothing to do)
  Completion completion;      // of Request::test
  std::size_t physical = 2;
  bool merge_nics = true;
  bool gpu_refused = false;               // device 1 registers no memory of the caller's GPU
  std::shared_ptr<CounterPage> counters;  // for open_transports

  // noted
  CommSettings last_session;
  int sessions_alive = 0, comms_alive = 0, listeners_alive = 0;
  int last_device = -1;
  std::vector<RecvBuffer> last_buffers;
  bool last_optional = false;
  std::size_t last_bytes = 0, last_registered = 0;
  int last_tag = 0, last_fd = 0;
  std::uint64_t last_offset = 0;
  MemoryType last_type = MemoryType::host;
  TrafficHints last_hints;
  int last_session_class = -2;  // traffic class of the session last used by listen or connect
};

// The one state of the fake; kept for the program's life as the Context is.
FakeState& fake();

}  // namespace twinpath::test
