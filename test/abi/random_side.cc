#include "test/abi/random_side.h"

#include <poll.h>

#include "test/support/child_process.h"

namespace twinpath::test {

void RandomSide::say(const Word& word) { (void)tell(peer_fd_, word); }

bool RandomSide::hear_handle(Handle& handle) {
  Word word;
  if (peer_ != Peer::there) return false;
  if (hear(peer_fd_, word) && word.what == 'h') {
    handle = word.handle;
    return true;
  }
  take(word);
  return false;
}

void RandomSide::watch(std::int64_t ms) {
  pollfd p{peer_fd_, POLLIN, 0};
  if (peer_ != Peer::there || ::poll(&p, 1, static_cast<int>(ms)) <= 0) return;
  Word word;
  (void)hear(peer_fd_, word);
  take(word);
}

}  // namespace twinpath::test
