#pragma once
// Gives the copy jobs of one GPU to the copy process and ends them when it has carried them out.
//
// What lies in host memory passes through the chunks of the passage, copied here: the process
// cannot see it.  Jobs are handed over in the order in which they came, and results come back in
// the order in which copies ended there, which keeps CopyJob::order's promise.
//
// Threads: submit: any.  start, stop, leave: one caller.  Everything else is the thread's own.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "plugin/gpu/copy_counts.h"
#include "plugin/gpu/inbox.h"
#include "plugin/gpu/job_list.h"
#include "plugin/gpu/process/address_map.h"
#include "plugin/gpu/process/copy_process.h"
#include "plugin/gpu/process/passage.h"
#include "plugin/gpu/process/ring_end.h"

namespace twinpath::gpu::process {

class Forwarder {
 public:
  // `memory`: kSharedBytes, which the process has, too.
  Forwarder(int gpu, SharedMemory memory, CopyProcess& process, const AddressMap& map,
            HelperCpus cpus);
  ~Forwarder() { stop(); }
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  void submit(CopyJob* job) { inbox_.push(job); }
  void stop();   // finishes what was submitted
  void leave();  // does not; for the end of the process
  CopyStatistics counts() const { return counts_.statistics(); }

 private:
  // A job that was handed over in part at least.
  struct Task {
    CopyJob* job = nullptr;
    std::uint32_t left = 0;  // entries under way
    Status status = Status::ok;
    bool all_given = false;
  };
  struct End {
    std::uint64_t address = 0;
    int gpu = -1;  // ordinal in the process
  };

  void run();
  bool step();
  bool take();
  bool issue();
  bool give(CopyJob& job);
  bool resolve(const CopyEnd& end, std::uint64_t bytes, End& out);
  bool give_one(CopyJob& job, Entry& entry);
  bool give_words(CopyJob& job, const End& to);
  bool give_chunks(CopyJob& job, const End& to, const End& from);
  void push(Entry& entry, RingEnd::Given given = {});
  bool collect();
  void arrived(const RingEnd::Given& given, const Outcome& outcome);
  void end_task(std::uint32_t index);
  void give_up();

  const int gpu_;
  const HelperCpus cpus_;
  const SharedMemory memory_;
  RingEnd ring_;
  CopyProcess& process_;
  AddressView view_;
  Passage passage_;
  JobInbox inbox_;
  JobList pending_;
  std::uint64_t given_ = 0;       // bytes of pending_.front() already handed over
  std::uint32_t front_task_ = 0;  // its task, when given_ is not 0
  std::vector<Task> tasks_;
  std::vector<std::uint32_t> tasks_free_;
  bool warned_ = false;
  std::atomic<bool> stopping_{false}, leaving_{false};
  CopyCounts counts_;
  std::thread thread_;
};

}  // namespace twinpath::gpu::process
