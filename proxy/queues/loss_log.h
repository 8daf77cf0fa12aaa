#pragma once
// A peer's process that ends takes all connections to it along, which may be thousands.  Of those
// that are lost for the process's sake the first is told of in full, the others are counted: at 10,
// at 100 and so on, and when the last of them is closed.
//
// Threads: under the hub's lock.
#include <map>
#include <optional>
#include <string>

namespace twinpath {

class LossLog {
 public:
  // One more is lost.  How many are by now, if that is to be said; kInFull: say which, and why.
  static constexpr unsigned kInFull = 1;
  std::optional<unsigned> lost(const std::string& process) {
    Entry& e = entries_[process];
    ++e.open;
    if (++e.lost != e.next) return std::nullopt;
    e.next *= 10;
    e.told = e.lost;
    return e.lost;
  }
  // One of them is closed.  How many were lost in all, if it was the last and nobody said so.
  std::optional<unsigned> closed(const std::string& process) {
    const auto at = entries_.find(process);
    if (at == entries_.end() || --at->second.open > 0) return std::nullopt;
    const Entry e = at->second;
    entries_.erase(at);
    if (e.lost == e.told) return std::nullopt;
    return e.lost;
  }

 private:
  struct Entry {
    unsigned lost = 0, open = 0, told = 0, next = kInFull;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace twinpath
