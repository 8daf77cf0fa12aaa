#pragma once
// Owning handles.  Owned<ibv_qp> is a pointer, the function that destroys it and nothing
// else; declare members in creation order so that destruction is the reverse.
#include <unistd.h>

#include <memory>
#include <utility>

namespace twinpath {

template <class T>
struct Destroy {
  int (*fn)(T*) = nullptr;
  void operator()(T* p) const {
    if (p != nullptr) (void)fn(p);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy<T>>;

template <class T>
Owned<T> own(T* p, int (*fn)(T*)) {
  return Owned<T>(p, Destroy<T>{fn});
}

// A file descriptor that is closed once.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace twinpath
