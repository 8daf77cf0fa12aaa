#pragma once
// An end on the other host: the agent there (test/vm/lib/agent) starts this program with --end; a
// process here passes flags to it and its state back, over the network that no fault touches.
//
// A snapshot of the state goes over every 50 ms, so times are late by that much.
#include <string>

#include "plugin/base/owned.h"
#include "test/vm/faults/end.h"

namespace twinpath::test {

// In place of run_end, for a plan that says `remote`.  Never returns; the caller has just forked.
[[noreturn]] void run_remote_end(Shared& shared, Side side, const EndPlan& plan,
                                 const std::vector<std::size_t>& sizes);

// `vm-faults --end PLAN`, with the connection as stdin and stdout: the same on the other side.
int serve_remote_end(const std::string& plan);

// Has the agent run a shell command for as long as the result lives; none when it does not answer.
UniqueFd start_there(const std::string& command, int limit_ms);

// Has the agent run a shell command, and waits for its end at most `limit_ms`; false when it said
// no status 0.  `output` gets what it printed, and the agent's status line.
bool run_there(const std::string& command, int limit_ms, std::string* output = nullptr);

}  // namespace twinpath::test
