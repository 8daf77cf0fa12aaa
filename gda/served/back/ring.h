#pragma once
// A queue whose elements have numbers that never come again.  Grows when it is full, and keeps its
// memory: nothing is allocated once it has been as long as it gets.
//
// Threads: one at a time.
#include <cstdint>
#include <vector>

namespace twinpath::gda {

template <class T>
class Ring {
 public:
  explicit Ring(std::size_t initial = 16) : items_(initial) {}  // a power of two

  std::uint64_t first() const { return first_; }
  std::uint64_t end() const { return end_; }
  bool empty() const { return first_ == end_; }
  T& operator[](std::uint64_t number) { return items_[number & (items_.size() - 1)]; }
  const T& operator[](std::uint64_t number) const { return items_[number & (items_.size() - 1)]; }
  T& front() { return (*this)[first_]; }

  void push(const T& item) {
    if (end_ - first_ == items_.size()) grow();
    (*this)[end_++] = item;
  }
  void pop() { ++first_; }

 private:
  void grow() {
    std::vector<T> larger(items_.size() * 2);
    for (std::uint64_t n = first_; n != end_; ++n) larger[n & (larger.size() - 1)] = (*this)[n];
    items_.swap(larger);
  }

  std::vector<T> items_;
  std::uint64_t first_ = 0, end_ = 0;
};

}  // namespace twinpath::gda
