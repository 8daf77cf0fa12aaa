#pragma once
// Wakes connections whose callers do not call: when the peer of one has to be answered, when a port
// goes down or comes back, and when a time is up.  One thread a session, asleep in the kernel
// otherwise; it exists only where a connection can fail over (failover.h).
//
// Threads: add() and remove() any, without the hub's lock.  attend() is called with it.
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/sync.h"
#include "plugin/base/unshared_fd.h"

namespace twinpath {

class Attended {
 public:
  // Looks at what may have happened.  When it wants to be called next (now_ns clock); 0: when
  // something happens.
  virtual std::int64_t attend(std::int64_t now) = 0;

 protected:
  ~Attended() = default;
};

class Attendant {
 public:
  explicit Attendant(SpinLock& lock) : lock_(lock) {}
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  // It is called whenever one of its descriptors has something new.
  void add(Attended& who, const std::vector<int>& fds);
  // The descriptors are still open.  Afterwards it is not called any more.
  void remove(Attended& who);
  // Calls it soon, although it said another time.  Locked; between add and remove.
  void call(const Attended& who);

 private:
  struct Entry {
    Attended* who = nullptr;
    std::vector<int> fds;
    std::int64_t next = 0;  // wants to be called then (1: now); 0: when something happens
  };
  bool start();
  void say_missing(const char* what, const std::string& why);
  void run();
  void wake();

  SpinLock& lock_;  // the hub's: guards entries_ and stop_ as far as the thread is concerned
  std::mutex changes_;
  std::vector<Entry> entries_;
  std::vector<int> watched_;  // each descriptor as often as it was added
  UnsharedFd epoll_, bell_;
  std::thread thread_;
  bool stop_ = false;
  bool said_missing_ = false;
};

}  // namespace twinpath
