#pragma once
// The program's end of its copy process (server.h): starts it, asks it, notices its end.
//
// It is a process of this program alone, joined to it by a socket that nobody else has: no name
// that a stranger could take, and it ends when the program does.
//
// Threads: any.  start, open_gpu and import wait for the answer; nothing on a data path calls them.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "plugin/base/config.h"
#include "plugin/base/shared_memory.h"
#include "plugin/base/unshared_fd.h"
#include "plugin/gpu/process/wire.h"

namespace twinpath::gpu::process {

// The socket between program and copy process: the program's end, which children do not keep; the
// other is put into `theirs`.  False and errno: there is none.
UnsharedFd make_sockets(UniqueFd& theirs);

class CopyProcess {
 public:
  // `executable`: twinpath-copier.  `why`: the reason when there is none.
  static Result<std::unique_ptr<CopyProcess>> start(const std::string& executable, HelperCpus cpus,
                                                    std::string& why);
  // With somebody at the other end of `socket` who is to say `ready`, and to answer each question
  // within the limit: who does not is taken for ended.
  static constexpr std::int64_t kAnswerLimit = 60'000'000'000;
  static Result<std::unique_ptr<CopyProcess>> meet(UnsharedFd socket, std::string& why,
                                                   std::int64_t limit_ns = kAnswerLimit);

  int pid() const { return pid_; }
  // `memory`: for Rings and passage, given to the process too.  Gives the ordinal there.
  Result<int> open_gpu(const GpuUuid& gpu, const SharedMemory& memory);
  struct There {
    std::uint64_t address = 0;
    int gpu = -1;
  };
  Result<There> import(std::uint64_t id, const ExportedAllocation& allocation);
  void forget(std::uint64_t id);

  // Whether it has ended, which is logged once.  Looks, and passes its log lines on; cheap enough
  // for every millisecond.
  bool ended();
  // What ended() found last.
  bool seen_ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  explicit CopyProcess(UnsharedFd socket) : socket_(std::move(socket)) {}
  Status ask(const Question& question, int fd, Tell expected, Answer& answer);
  Status next(Answer& answer, bool wait);
  void note_end();

  std::mutex mutex_;  // the socket
  UnsharedFd socket_;
  int pid_ = 0;
  std::atomic<bool> ended_{false};
};

}  // namespace twinpath::gpu::process
