#pragma once
// Memory that two processes map: a memfd, which has no name and goes with the last that holds it.
//
// Its size is sealed before anybody else gets the descriptor, and a descriptor that came from
// another process is mapped only when it is sealed so: memory that could be cut short would kill
// whoever reads behind the end (SIGBUS).  Where one process alone is to write, all later mappings
// are read-only (Linux 5.1; before that a peer is merely trusted to map it so).
//
// Threads: one at a time.
#include <cstddef>
#include <string>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"

namespace twinpath {

enum class Writers { creator, both };

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& o) noexcept;
  SharedMemory& operator=(SharedMemory&& o) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // All zero, mapped for writing, pages reserved now, so that a full system shows here as an error
  // and not later as SIGBUS.  Logs the cause.
  static Result<SharedMemory> create(const char* name, std::size_t bytes, Writers writers);
  // The same without pages yet: none may be touched before reserve() has reserved it.
  static Result<SharedMemory> create_sparse(const char* name, std::size_t bytes, Writers writers);
  Status reserve(std::size_t offset, std::size_t bytes);
  // What another process made with that size and those writers; refused (`why`) when it is smaller
  // or not sealed.  The descriptor is not needed afterwards.
  static Result<SharedMemory> map(int fd, std::size_t bytes, Writers writers, std::string& why);

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  explicit operator bool() const { return data_ != nullptr; }
  // To be sent; -1 for memory that was mapped, and after take_fd().
  int fd() const { return fd_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }

 private:
  static Result<SharedMemory> make(const char* name, std::size_t bytes, Writers writers,
                                   bool reserve_all);
  UniqueFd fd_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace twinpath
