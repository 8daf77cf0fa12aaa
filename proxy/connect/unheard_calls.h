#pragma once
// A caller that is closed without a word calls again.  A listener that strangers crowd drops
// whoever has not spoken yet, and may drop us with them when this process was away for a moment.
// One that is gone refuses the next call.
//
// Threads: one at a time.
#include <cstdint>
#include <string>

namespace twinpath {

class UnheardCalls {
 public:
  // The listener closed another call, `waited_ms` after the first began.  Whether to call again:
  // until `limit_ms` after the first one that it closed.
  bool again(std::int64_t waited_ms, std::int64_t limit_ms) {
    if (calls_++ == 0) first_ms_ = waited_ms;
    return waited_ms - first_ms_ < limit_ms;
  }
  // For messages, behind what is said; empty when every call was heard.
  std::string text() const {
    if (calls_ == 0) return {};
    return "; the listener closed " + std::to_string(calls_) +
           " calls without a word: it is crowded by strangers, or another program's";
  }

 private:
  int calls_ = 0;
  std::int64_t first_ms_ = 0;
};

}  // namespace twinpath
