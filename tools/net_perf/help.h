#pragma once
// What --help says below the list of options.

namespace twinpath::tools {

inline constexpr const char* kHelpFooter =
    R"(Tests (a pair per two workers, on this host unless a launcher says otherwise):
  latency    one-way time of one message: half of a round trip; --window
             receives posted ahead [1]
  bw         one direction, --window messages in flight
  bibw       both directions at once; bandwidth is the sum
  rate       messages per second (default size 8)
  group      receives grouped --group at a time, told apart by tags
  step       time of a step of NCCL's pipeline (default: steps of 128k over 4
             connections at once, 8 in flight on each): us per step per
             connection, GB/s of all together
  conns      time and memory per idle connection, for each count in
             --connections
  solo       messages per second with both ends in one thread, from the first
             --dev to the second
  callgrind  the same with one size, once, for counting instructions (see
             instructions.sh)

Loops (--loop; of one connection, the same calls whatever the plugin):
  window     posts until the window is full, then tests until nothing is done:
             several posts a poll
  one        one message at a time: irecv, isend, test, test
  group      one group at a time: irecv of 8 (--group), 8 isends, tests
  poll       a full window; each round posts one message and tests the oldest:
             one post a poll (in one thread receives are posted half a window
             ahead of their sends)

--against: both plugins have their turns in one run, --rounds of each, in
changing order, each with workers of its own.  A round gives a ratio; printed
are the median of these, the least and the largest.  "ratio" is above 1 where
this plugin is the better one.  "by chance" is how often two equal plugins would
have as many rounds on one side: 1 in 16 or rarer, and at least 5 rounds, tell
two plugins apart.  The plugin against itself shows the machine's noise.

Two hosts, or more: one process a worker, started by mpirun or srun, or by hand
with --rank; their number is even, workers 2k and 2k+1 are a pair.  All get the
same options; --dev and --gpu lists go round over workers.  Rank 0 prints.
Where it listens is --rendezvous, else $MASTER_ADDR:$MASTER_PORT, else the first
node of a Slurm step, or mpirun's host:
  mpirun -np 2 --host a,b net_perf --test bw
  srun -N 2 -n 2 net_perf --test latency
  on a: net_perf --test bw --rank 0/2 --rendezvous a:29500
  on b: net_perf --test bw --rank 1/2 --rendezvous a:29500

Examples:
  net_perf --test latency --sizes 8,64,4k
  net_perf --test bw -b 4k -e 16m --window 8
  net_perf --test bw --gpu 0,1 --sizes 1m,64m
  net_perf --test solo --loop poll --sizes 8,64
  net_perf --test conns --connections 1,64,512 --json
  net_perf --plugin /usr/lib/libnccl-net-other.so --abi 10 --test rate
  net_perf --test latency --against /opt/libnccl-net-other.so --plot against.svg

Ctrl-C and SIGTERM end a run early: what was measured until then is printed.

Exit status: 0 all right, 1 a test failed (wrong data, error, time-out), 2 bad
arguments; by the signal after Ctrl-C.)";

}  // namespace twinpath::tools
