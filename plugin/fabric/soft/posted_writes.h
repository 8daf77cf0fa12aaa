#pragma once
// The fault late_us: WRITEs into GPU memory, and what READs bring there, are placed late, while
// everything in host memory (words, completions, immediate data) is placed at once.  So it is
// behind PCIe, where writes to one destination are in order and writes to two are not: a kernel may
// see a signal in host memory before the data in its own.
//
// What is on its way to a GPU's memory through one protection domain (which stands for the adapter)
// arrives in order, at the latest after the delay, or when something pushes it: a READ of some
// bytes of that GPU's memory, or an atomic there, executed through the same domain, waits until all
// that was posted before it is placed (a PCIe read does not pass posted writes).  The driver
// of that GPU can do the same for all adapters (place_posted_writes).  Deregistration waits, too;
// the end of a queue pair, or of its port, pushes nothing.  Only between queue pairs of one
// process: another process's copies are its own.
//
// Threads: any; a thread of its own gives the copies to the copy engines, one after the other.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "plugin/fabric/soft/keys.h"

namespace twinpath::soft {

// Bytes on their way.  Its maker has put the data into `data`.
struct PostedWrite : CopyJob {
  std::unique_ptr<std::uint8_t[]> data;
  std::uint64_t filled = 0;                    // of it, by the maker
  std::atomic<std::uint32_t>* held = nullptr;  // count of the key of where they go
  std::uint32_t pd = 0;
  std::int64_t due = 0;
  class PostedWrites* owner = nullptr;
};

class PostedWrites {
 public:
  // Set once, before the first use.  0: off.
  void set_delay(std::int64_t delay_ns) { delay_ns_ = delay_ns; }
  bool on() const { return delay_ns_ != 0; }
  // `to`, `bytes`, `data`, `held`, `pd` are set.
  void add(std::unique_ptr<PostedWrite> write);
  // Whether nothing is on its way there; else it is placed now: ask again.
  bool push(std::uint32_t pd, int gpu);
  // Places what is on its way to that GPU's memory, through whatever domain, and waits for it.
  void place(int gpu);
  // Whether some of what was to be placed by then is not: threads that got no processor.
  bool owes(std::int64_t then);

 private:
  struct Way {
    std::deque<std::unique_ptr<PostedWrite>> writes;
    void take_off() {
      placing = false;
      writes.pop_front();
      ++placed;
    }
    bool placing = false;  // the first
    std::uint64_t added = 0, placed = 0;
  };
  void run();
  std::int64_t place_due(std::int64_t now);  // lock held; when to look again
  static void placed(CopyJob* job, Status status);

  std::int64_t delay_ns_ = 0;
  std::mutex lock_;
  std::condition_variable changed_, gone_;
  std::map<std::pair<std::uint32_t, int>, Way> ways_;
  bool started_ = false;
};

}  // namespace twinpath::soft
