#pragma once
// The tests.  Each runs in both workers of a pair and reports raw figures to the parent, which
// puts the pairs together (report.h).
#include "tools/net_perf/endpoint.h"

namespace twinpath::tools {

void run_latency(Endpoint& e);
void run_streams(Endpoint& e);      // bw, bibw, rate, group, step
void run_connections(Endpoint& e);  // conns

// Worker's main function: set-up, the test, tidy-up; tells the parent of every failure.
void worker_main(const Options& options, int rank, Channel control, Channel peer);

// --test solo and callgrind: no workers; returns the exit status.
int run_single_thread(const Options& options);

// Single-thread memcpy of `size` between buffers as large as the window, bytes per second.
double memcpy_rate(std::size_t size, std::size_t working_set);

}  // namespace twinpath::tools
