#pragma once
// What the parts of one RMA comm share.
//
// Threads: see gda/team/team_core.h.  `contexts` changes with setup calls; windows are looked up by
// whoever drives a context, under a lock that only signals without atomics and setup take.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gda/served/front/key_table.h"
#include "gda/team/team_core.h"
#include "gda/team/word_turn.h"

namespace twinpath::gda::rma {

class Context;

class Team : public TeamCore {
 public:
  Team() : TeamCore("RMA") {}

  // Collective: whether all adapters have atomics.
  Status agree_on_atomics();
  // Signals are messages: see README.md.
  bool counted() const { return counted_; }

  // Windows have the same number at every rank, for all register in one order.
  std::uint32_t next_number() { return ++numbers_; }
  // `memory`: this rank's, with rkeys, for who adds to its words.
  void add(std::uint32_t number, const KeyedMemory& memory);
  void remove(std::uint32_t number);
  // False: no such window is registered.
  bool find(std::uint32_t number, KeyedMemory& out) const;

  // Its callers drive it: nothing that others looked up waits to be posted.
  void pass_round() {}

  std::vector<Context*> contexts;
  WordTurn words;  // of signals in GPU memory

 private:
  void warn_of_lost_port(const std::string& why) const override;

  bool counted_ = false;
  std::uint32_t numbers_ = 0;
  mutable std::mutex windows_mutex_;
  std::map<std::uint32_t, KeyedMemory> windows_;
};

}  // namespace twinpath::gda::rma
