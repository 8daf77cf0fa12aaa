#pragma once
// Many connected queue pairs between two sides of one process, all of a side on one CQ.
#include <memory>
#include <vector>

#include "test/soft/pair.h"

namespace twinpath::test {

class Many {
 public:
  Side a, b;

  explicit Many(int count, const Options& o = {}) : a(o), b(o), count_(count) {
    for (int i = 0; i < count; ++i) {
      ibv_qp* near = make(a);
      ibv_qp* far = make(b);
      on(a, near, [&] { a.connect(far->qp_num, b.gid); });
      on(b, far, [&] { b.connect(near->qp_num, a.gid); });
    }
  }
  ~Many() {
    for (ibv_qp* qp : near_) a.verbs.destroy_qp(qp);
    for (ibv_qp* qp : far_) b.verbs.destroy_qp(qp);
  }
  Many(const Many&) = delete;
  Many& operator=(const Many&) = delete;

  int count() const { return count_; }

  // Runs `use` with the n-th queue pair in the place of the side's own.
  template <class Use>
  void at_a(int n, Use use) {
    on(a, near_[static_cast<std::size_t>(n)], use);
  }
  template <class Use>
  void at_b(int n, Use use) {
    on(b, far_[static_cast<std::size_t>(n)], use);
  }

 private:
  ibv_qp* make(Side& s) {
    ibv_qp* own = s.qp;
    s.make_qp();
    std::swap(own, s.qp);
    (&s == &a ? near_ : far_).push_back(own);
    return own;
  }
  template <class Use>
  static void on(Side& s, ibv_qp* qp, Use use) {
    std::swap(s.qp, qp);
    use();
    std::swap(s.qp, qp);
  }

  int count_;
  std::vector<ibv_qp*> near_, far_;
};

}  // namespace twinpath::test
