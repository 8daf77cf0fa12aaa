#include "plugin/base/unshared_fd.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace twinpath {
namespace {

constexpr std::size_t kBits = 64;

// The listed descriptors, a bit each: what the child does with it needs no memory.
struct List {
  std::mutex lock;
  std::vector<std::uint64_t> words;

  std::uint64_t& word(int fd) { return words[static_cast<std::size_t>(fd) / kBits]; }
  static std::uint64_t bit(int fd) {
    return std::uint64_t{1} << (static_cast<std::size_t>(fd) % kBits);
  }
};

List& the_list();

// The child has one thread, which took the lock before the fork.
void close_all_in_child() {
  List& list = the_list();
  for (std::size_t w = 0; w < list.words.size(); ++w) {
    for (std::size_t b = 0; b < kBits; ++b)
      if ((list.words[w] >> b & 1) != 0) (void)::close(static_cast<int>(w * kBits + b));
    list.words[w] = 0;
  }
  list.lock.unlock();
}

List& the_list() {
  // Never destroyed: threads of the application may be inside a call when the process ends.
  static List& list = []() -> List& {
    auto* made = new List;
    (void)::pthread_atfork([] { the_list().lock.lock(); }, [] { the_list().lock.unlock(); },
                           close_all_in_child);
    return *made;
  }();
  return list;
}

}  // namespace

std::mutex& UnsharedFd::list_lock() { return the_list().lock; }

int UnsharedFd::list(int fd) {
  if (fd < 0) return fd;
  List& list = the_list();
  try {
    if (static_cast<std::size_t>(fd) / kBits >= list.words.size())
      list.words.resize(static_cast<std::size_t>(fd) / kBits + 1);
  } catch (const std::bad_alloc&) {
    (void)::close(fd);
    errno = ENOMEM;
    return -1;
  }
  list.word(fd) |= List::bit(fd);
  return fd;
}

void UnsharedFd::reset() {
  if (fd_ < 0) return;
  const int fd = std::exchange(fd_, -1);
  List& list = the_list();
  // Closed under the lock: a fork in between would give the child a descriptor that nobody lists.
  const std::lock_guard hold(list.lock);
  if ((list.word(fd) & List::bit(fd)) == 0) return;  // closed by the fork
  list.word(fd) &= ~List::bit(fd);
  (void)::close(fd);
}

}  // namespace twinpath
