#pragma once
// What the parts of one RMA comm share.  Each context holds it, so that it outlives them all.
//
// Threads: made by connect.  `contexts` changes with setup calls; windows are looked up by whoever
// drives a context, under a lock that only signals without atomics and setup take.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gda/team/gin_core.h"

namespace twinpath::gda::rma {

class Context;
class Inbox;

// This rank's memory of a window, for who adds to its words.
struct OwnMemory {
  KeyedMemory memory;  // fabric_key: for the adapter's access through a queue pair
  bool on_gpu = false;
};

class Team {
 public:
  explicit Team(std::shared_ptr<GinCore> made) : core_(std::move(made)) {}

  GinCore& core() { return *core_; }
  const GinCore& core() const { return *core_; }
  const Config& config() const { return core_->config(); }

  // Collective: whether all adapters have atomics.
  Status agree_on_atomics();
  // Signals are messages: see README.md.
  bool counted() const { return counted_; }

  // Windows have the same number at every rank, for all register in one order.
  std::uint32_t next_number() { return ++numbers_; }
  void add(std::uint32_t number, const OwnMemory& memory);
  void remove(std::uint32_t number);
  // False: no such window is registered.
  bool find(std::uint32_t number, OwnMemory& out) const;

  // Whether the port is lost for good: then all other ranks find the end of this one.  Any thread.
  bool lost_port(std::int64_t now);

  std::vector<Context*> contexts;
  // The one that reads and writes words of signals at the moment; null: nobody.
  std::atomic<const Inbox*> adding{nullptr};

 private:
  const std::shared_ptr<GinCore> core_;
  bool counted_ = false;
  std::uint32_t numbers_ = 0;
  mutable std::mutex windows_mutex_;
  std::map<std::uint32_t, OwnMemory> windows_;
  std::mutex port_mutex_;
  bool port_lost_ = false;
};

}  // namespace twinpath::gda::rma
