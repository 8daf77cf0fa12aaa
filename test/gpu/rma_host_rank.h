#pragma once
// A rank of rma_host: NCCL's host RMA between processes, each with an NCCL_HOSTID of its own, so
// that NCCL takes each for a host and several may share a GPU; or between threads.
#include <string>
#include <vector>

namespace twinpath::rma_host {

struct Options {
  std::vector<int> gpus{0, 0};  // by rank
  std::string nccl;             // empty: the loader's libnccl.so.2
  int limit_s = 180;
  int rounds = 100;      // of the round trips
  bool kill = false;     // at the end the last rank goes without a word
  bool threads = false;  // ranks are threads of one process
};

// Where ranks meet outside of NCCL: the parent, over a socket.
class Meeting {
 public:
  explicit Meeting(int fd) : fd_(fd) {}
  // Rank 0's bytes at everybody; what is too short is not exchanged but the end of the process.
  void share(void* bytes, std::size_t size) const;
  void barrier() const;

 private:
  const int fd_;
};

// All cases, a line each from rank 0.  Status of the process.
int run_rank(const Options& options, int rank, const Meeting& meeting);

}  // namespace twinpath::rma_host
