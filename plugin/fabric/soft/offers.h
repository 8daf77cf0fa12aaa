#pragma once
// Links that were offered to queue pairs of ours which have not asked for them yet.
//
// Threads: whoever holds Hca::lock_.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "plugin/fabric/soft/board.h"
#include "plugin/fabric/soft/link.h"

namespace twinpath::soft {

class Offers {
 public:
  // To our queue pair, from the other; one of before is forgotten.
  void add(std::uint32_t own, std::uint32_t other, std::shared_ptr<Link> link) {
    links_[{own, other}] = std::move(link);
  }
  // Null: there is none.
  std::shared_ptr<Link> take(std::uint32_t own, std::uint32_t other) {
    const auto at = links_.find({own, other});
    if (at == links_.end()) return nullptr;
    std::shared_ptr<Link> link = std::move(at->second);
    links_.erase(at);
    return link;
  }
  // Our queue pair is no more.
  void forget(std::uint32_t own) {
    std::erase_if(links_, [own](const auto& o) { return o.first.first == own; });
  }
  // As many as a process has use for: others' are refused.
  bool is_full() const { return links_.size() >= std::size_t{2} * kQpsPerProcess; }

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Link>> links_;
};

}  // namespace twinpath::soft
