#include "test/unit/wire_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <unordered_set>

namespace twinpath::model {
namespace {

static_assert(std::has_unique_object_representations_v<State>, "states are compared as bytes");

struct Key {
  std::uint64_t a = 0xcbf29ce484222325u, b = 0x9e3779b97f4a7c15u;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  std::size_t operator()(const Key& k) const { return k.a; }
};
// 128 bits stand for a state: two of a million share them with a chance of 1 in 10^26.
// Queues have no names: which of them is which makes no difference.
Key key_of(const State& s) {
  std::array<U8, (sizeof(State) + 7) / 8 * 8> bytes{};
  std::memcpy(bytes.data(), &s, sizeof s);
  const auto size = static_cast<std::ptrdiff_t>(sizeof s.queues[0]);
  const auto first = bytes.begin() + offsetof(State, queues), second = first + size;
  if (std::memcmp(&*first, &*second, sizeof s.queues[0]) > 0)
    std::swap_ranges(first, second, second);
  Key k;
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    k.a = (k.a ^ word) * 0xff51afd7ed558ccdu;
    k.a ^= k.a >> 32;
    k.b = (k.b + word) * 0xc4ceb9fe1a85ec53u;
    k.b ^= k.b >> 29;
  }
  return k;
}

class Search {
 public:
  Search(const Program& program, const Defects& defects) : model_(program, defects) {}
  Outcome run() {
    visit(model_.begin());
    Outcome out{stuck_ ? Fault::stuck : model_.fault(), seen_.size(), {}};
    for (const std::string& step : path_) out.path += step + "; ";
    return out;
  }

 private:
  bool failed() const { return stuck_ || model_.fault() != Fault::none; }
  // False, with the path left as it is, once there is a fault.
  bool visit(const State& s) {
    if (!seen_.insert(key_of(s)).second) return true;
    bool moved = false;
    // Does `step` on a copy; it says whether it was possible.
    const auto attempt = [&](const char* what, unsigned n, auto step) {
      if (failed()) return;
      State next = s;
      if (!step(next)) return;
      moved = true;
      path_.push_back(std::string(what) + " " + std::to_string(n));
      if (!failed() && visit(next)) path_.pop_back();
    };
    attempt("irecv", s.receiver.next_receive, [&](State& n) { return model_.irecv(n); });
    attempt("cells from", s.receiver.posted, [&](State& n) { return model_.post_cells(n); });
    for (U8 q = 0; q < kQueues; ++q) {
      for (U8 tag = 0; tag < kTags; ++tag)
        attempt("isend tag", tag, [&](State& n) { return model_.isend(n, tag, q); });
      for (U8 i = 0; i < kParcel; ++i)
        attempt("write alone on", q, [&](State& n) { return model_.write_alone(n, i, q); });
      for (U8 n = 1; n <= kParcel; ++n)
        attempt("write parcel on", q, [&](State& next) { return model_.write_parcel(next, n, q); });
      attempt("data comes on", q, [&](State& n) { return model_.deliver(n, q); });
    }
    for (U8 i = 0; i < s.reports.count; ++i)
      attempt("report comes", i, [&](State& n) { return model_.deliver_report(n, i); });
    attempt("poll", 0, [&](State& n) { return model_.poll(n.receiver); });
    if (!failed() && !moved && !model_.finished(s)) stuck_ = true;
    return !failed();
  }

  Model model_;
  bool stuck_ = false;
  std::unordered_set<Key, KeyHash> seen_;
  std::vector<std::string> path_;
};

}  // namespace

Outcome explore(const Program& program, const Defects& defects) {
  return Search(program, defects).run();
}

}  // namespace twinpath::model
